// Package devicetext prints devices for people: as tables, and their changes as lines. It serves frond device and frond edge device.
package devicetext

import (
	"fmt"
	"io"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/internal/cli"
)

// PrintList prints one line for each device.
func PrintList(out io.Writer, all []deviceview.Device, now time.Time) error {
	table := cli.NewTable(out, "NAMESPACE", "NAME", "MODEL", "NODE", "STATE", "LAST", "APPLIED", "AGE")
	for i := range all {
		d := &all[i]
		last, _ := time.Parse(time.RFC3339, d.LastOnline) // "-" if it is none
		table.AddRow(d.Namespace, d.Name, cli.OrDash(d.Model), cli.OrDash(d.Node), cli.OrDash(d.State), cli.FormatAge(last, now),
			answerWord(d.Condition(devices.ConditionApplied)), cli.FormatAge(d.Created, now))
	}
	return table.Print()
}

// answerWord returns a condition in the words of a table.
func answerWord(c *metav1.Condition) string {
	switch {
	case c == nil:
		return "?"
	case c.Status == metav1.ConditionTrue:
		return "yes"
	case c.Status == metav1.ConditionFalse:
		return "no"
	default:
		return "?"
	}
}

// PrintDevice prints a device with its properties, and the conditions that are not met.
func PrintDevice(out io.Writer, d *deviceview.Device, now time.Time) error {
	if err := PrintList(out, []deviceview.Device{*d}, now); err != nil {
		return err
	}
	table := cli.NewTable(out, "\nPROPERTY", "DESIRED", "REPORTED", "AT", "SET ON THE GATEWAY")
	for _, p := range d.Properties {
		at := time.Time{}
		if ms, err := strconv.ParseInt(p.ReportedAt, 10, 64); err == nil {
			at = time.UnixMilli(ms)
		}
		table.AddRow(p.Name, valueOf(p.Desired), valueOf(p.Reported), cli.FormatAge(at, now), cli.OrDash(overrideAt(p.Override, now)))
	}
	if err := table.Print(); err != nil {
		return err
	}
	if d.HeldBy != "" {
		fmt.Fprintf(out, "\nHeld by gateway %s, which has not confirmed that it has removed the device: no other gateway drives it until then\n", d.HeldBy)
	}
	for _, c := range d.Conditions {
		if c.Status != metav1.ConditionTrue {
			fmt.Fprintf(out, "\n%s: %s (%s): %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	return nil
}

// overrideAt describes an override. One whose end has passed is over, though a gateway that is away has not reported that.
func overrideAt(o *deviceview.Override, now time.Time) string {
	if o != nil && now.After(o.Until) {
		return "ended " + o.Until.UTC().Format(time.RFC3339)
	}
	return overrideOf(o)
}

// overrideOf describes an override, "" for none.
func overrideOf(o *deviceview.Override) string {
	if o == nil {
		return ""
	}
	return o.Value + " until " + o.Until.UTC().Format(time.RFC3339) + " by " + o.By
}

func valueOf(v *string) string {
	if v == nil {
		return "-"
	}
	return *v
}

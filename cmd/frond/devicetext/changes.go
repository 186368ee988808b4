package devicetext

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/internal/cli"
)

// What changes of a device.
const (
	WhatReported  = "reported"
	WhatDesired   = "desired"
	WhatState     = "state"
	WhatNode      = "node"
	WhatCondition = "condition"
	// WhatOverride: a desired value was set on the gateway, or has ended.
	WhatOverride = "override"
	// WhatDevice: the device came ("present") or went (no value).
	WhatDevice = "device"
)

// Change is one change of a device, and a line of -o json.
type Change struct {
	// Time is when the command saw it, DeviceTime the device's time of a reported value, in milliseconds.
	Time       time.Time `json:"time"`
	DeviceTime string    `json:"deviceTime,omitempty"`
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	Node       string    `json:"node,omitempty"`
	// What is one of the constants; Property is the property or the type of the condition.
	What     string `json:"what"`
	Property string `json:"property,omitempty"`
	// Value and Before are nil where there is no value.
	Value  *string `json:"value"`
	Before *string `json:"before,omitempty"`
	// Message explains a condition.
	Message string `json:"message,omitempty"`
}

// fact is one thing that is known of a device, with what comes along without being a change by itself.
type fact struct {
	value, deviceTime, message string
}

// factKey names a fact.
type factKey struct{ what, property string }

// rank orders the lines of one device.
func rank(what string) int {
	return slices.Index([]string{WhatDevice, WhatNode, WhatState, WhatDesired, WhatOverride, WhatReported, WhatCondition}, what)
}

func factsOf(d *deviceview.Device) map[factKey]fact {
	facts := map[factKey]fact{}
	if d == nil {
		return facts
	}
	facts[factKey{WhatDevice, ""}] = fact{value: "present"}
	if d.Node != "" {
		facts[factKey{WhatNode, ""}] = fact{value: d.Node}
	}
	if d.State != "" {
		facts[factKey{WhatState, ""}] = fact{value: d.State}
	}
	for _, p := range d.Properties {
		if p.Desired != nil {
			facts[factKey{WhatDesired, p.Name}] = fact{value: *p.Desired}
		}
		if p.Override != nil {
			facts[factKey{WhatOverride, p.Name}] = fact{value: overrideOf(p.Override)}
		}
		if p.Reported != nil {
			facts[factKey{WhatReported, p.Name}] = fact{value: *p.Reported, deviceTime: p.ReportedAt}
		}
	}
	for i := range d.Conditions {
		if c := d.Condition(d.Conditions[i].Type); c != nil { // one of an older generation is not known now
			facts[factKey{WhatCondition, c.Type}] = fact{value: string(c.Status), message: c.Message}
		}
	}
	return facts
}

// Changes returns what differs between two views of one device; nil is one that is not there. A value that was reported again is no change.
func Changes(before, after *deviceview.Device, now time.Time) []Change {
	was, is := factsOf(before), factsOf(after)
	all := maps.Clone(was)
	maps.Copy(all, is)
	keys := slices.SortedFunc(maps.Keys(all), compareKeys)
	about := after
	if about == nil {
		about = before
	}
	var changes []Change
	for _, key := range keys {
		old, known := was[key]
		fresh, there := is[key]
		if known && there && old.value == fresh.value && old.message == fresh.message {
			continue
		}
		c := Change{
			Time: now.UTC(), Namespace: about.Namespace, Name: about.Name, Node: about.Node, What: key.what, Property: key.property,
			DeviceTime: fresh.deviceTime, Message: fresh.message,
		}
		if known {
			c.Before = &old.value
		}
		if there {
			c.Value = &fresh.value
		}
		changes = append(changes, c)
	}
	return changes
}

func compareKeys(a, b factKey) int {
	return cmp.Or(cmp.Compare(rank(a.what), rank(b.what)), cmp.Compare(a.property, b.property))
}

// PrintChange prints a change as one line.
func PrintChange(out io.Writer, c *Change) error {
	subject := c.What
	if c.Property != "" {
		subject += " " + c.Property
	}
	text := valueOf(c.Value)
	if c.Before != nil && c.Value != nil && *c.Before == *c.Value {
		text = *c.Value // another message
	} else if c.Before != nil {
		text = *c.Before + " -> " + text
	}
	if c.Message != "" {
		text += " (" + c.Message + ")"
	}
	_, err := fmt.Fprintf(out, "%s  %s/%s  %s: %s\n", c.Time.Local().Format(time.TimeOnly), c.Namespace, c.Name, subject, text)
	return err
}

// Printer prints the changes of devices, as lines or as one JSON object a line.
type Printer struct {
	Out  io.Writer
	JSON bool
	// last are the devices as they were printed, by namespace and name.
	last map[string]*deviceview.Device
}

// Remember takes a device as printed.
func (p *Printer) Remember(d *deviceview.Device) {
	if p.last == nil {
		p.last = map[string]*deviceview.Device{}
	}
	p.last[d.Namespace+"/"+d.Name] = d
}

// Print prints what has changed of a device since it was printed before. after is nil when it is gone.
func (p *Printer) Print(id string, after *deviceview.Device, now time.Time) error {
	before := p.last[id]
	if before == nil && after == nil {
		return nil
	}
	for _, c := range Changes(before, after, now) {
		if err := p.printOne(&c); err != nil {
			return err
		}
	}
	if after == nil {
		delete(p.last, id)
	} else {
		p.Remember(after)
	}
	return nil
}

// PrintAll prints what has changed of all devices: one that is not among them is gone.
func (p *Printer) PrintAll(all []deviceview.Device, now time.Time) error {
	gone := maps.Clone(p.last)
	for i := range all {
		id := all[i].Namespace + "/" + all[i].Name
		delete(gone, id)
		if err := p.Print(id, &all[i], now); err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(gone)) {
		if err := p.Print(id, nil, now); err != nil {
			return err
		}
	}
	return nil
}

func (p *Printer) printOne(c *Change) error {
	if p.JSON {
		return cli.PrintJSONLine(p.Out, c)
	}
	return PrintChange(p.Out, c)
}

package edge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/cmd/frond/devicetext"
	"github.com/frond-edge/frond/internal/cli"
)

const (
	// deviceTimeout bounds a request: longer than edgecore's own limit, so that its answer comes first.
	deviceTimeout = 20 * time.Second
	// devicePoll is how often watch asks. edgecore answers from memory.
	devicePoll = time.Second
)

// The exit codes of set are those of frond device set.
const (
	exitRejected  = 3
	exitUncertain = 5
)

// deviceAPI is edgecore's API for devices.
type deviceAPI struct {
	edge    *edgeAPI
	factory cmdutil.Factory
}

func newDevice(e *edgeAPI, f cmdutil.Factory) *cobra.Command {
	api := &deviceAPI{e, f}
	cmd := &cobra.Command{
		Use:   "device",
		Short: "Show the devices of this gateway, and set desired values here",
		Long: `Show the devices of this gateway, and set desired values here, also while the link is down. edgecore needs a part for devices
(devices.mqtt in its configuration).`,
	}
	cmd.AddCommand(newDeviceList(api), newDeviceGet(api), newDeviceWatch(api), newDeviceSet(api))
	return cmd
}

func newDeviceList(api *deviceAPI) *cobra.Command {
	var output cli.Output
	var all bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Args: cobra.NoArgs,
		Short: "List the devices of this gateway",
		RunE: func(cmd *cobra.Command, _ []string) error {
			devices, err := api.list(cmd.Context(), all)
			switch {
			case err != nil:
				return err
			case output.JSON():
				return cli.PrintJSON(cmd.OutOrStdout(), devices)
			case len(devices) == 0:
				fmt.Fprintln(cmd.ErrOrStderr(), "no devices")
				return nil
			}
			return devicetext.PrintList(cmd.OutOrStdout(), devices, time.Now())
		},
	}
	output.AddFlag(cmd)
	addAllNamespaces(cmd, &all)
	return cmd
}

func addAllNamespaces(cmd *cobra.Command, all *bool) {
	cmd.Flags().BoolVarP(all, "all-namespaces", "A", false, "of all namespaces")
}

func newDeviceGet(api *deviceAPI) *cobra.Command {
	var output cli.Output
	cmd := &cobra.Command{
		Use: "get NAME", Args: cobra.ExactArgs(1),
		Short: "Show a device of this gateway: its desired and reported values, and what was set here",
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := api.get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if output.JSON() {
				return cli.PrintJSON(cmd.OutOrStdout(), d)
			}
			return devicetext.PrintDevice(cmd.OutOrStdout(), d, time.Now())
		},
	}
	output.AddFlag(cmd)
	return cmd
}

func newDeviceWatch(api *deviceAPI) *cobra.Command {
	var output cli.Output
	var all, changesOnly bool
	cmd := &cobra.Command{
		Use: "watch [NAME]", Args: cobra.MaximumNArgs(1),
		Short: "Print each change of the devices of this gateway, until interrupted",
		Long: `Print the values of a device of this gateway, or of all, and then each change, at most one a second for each value. It goes on after a
restart of edgecore.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			p := &devicetext.Printer{Out: cmd.OutOrStdout(), JSON: output.JSON()}
			return api.watch(cmd.Context(), p, slices.Concat(args, []string{""})[0], all, changesOnly, cmd.ErrOrStderr())
		},
	}
	output.AddFlag(cmd)
	addAllNamespaces(cmd, &all)
	cmd.Flags().BoolVar(&changesOnly, "watch-only", false, "print changes only, not the values of the start")
	return cmd
}

// watch prints changes until ctx ends, and then returns nil. An edgecore that does not answer later is asked again.
func (a *deviceAPI) watch(ctx context.Context, p *devicetext.Printer, name string, all, changesOnly bool, talk io.Writer) error {
	ticker := time.NewTicker(devicePoll)
	defer ticker.Stop()
	for first := true; ; first = false {
		devices, err := a.some(ctx, name, all)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			fmt.Fprintln(talk, "watch interrupted, trying again:", err)
		case first && changesOnly:
			for i := range devices {
				p.Remember(&devices[i])
			}
		default:
			if err := p.PrintAll(devices, time.Now()); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// some returns the device of a name, none if it is gone, or all of the namespace.
func (a *deviceAPI) some(ctx context.Context, name string, all bool) ([]deviceview.Device, error) {
	devices, err := a.list(ctx, all)
	if name == "" || err != nil {
		return devices, err
	}
	return slices.DeleteFunc(devices, func(d deviceview.Device) bool { return d.Name != name }), nil
}

func newDeviceSet(api *deviceAPI) *cobra.Command {
	var lasts time.Duration
	var end bool
	by := ""
	cmd := &cobra.Command{
		Use:   "set NAME PROPERTY=VALUE... --for DURATION | set NAME [PROPERTY...] --end",
		Short: "Set desired values of a device here, for a time",
		Long: `Set desired values of a device on this gateway, for a time. They win over those of the Device in the cloud, also after a restart and without a
link, and end by themselves: then the Device's values are driven again. The cloud shows them, with who set them (condition LocalOverride).
The model is checked as for the Device's values. With --end they end now: those of the named properties, or all.

Exit codes: 0 done; 1 an error, and nothing has changed; 3 the model does not allow a value; 5 no answer: it may be set or ended, and
frond edge device get NAME shows it.`,
		Example: "  frond edge device set boiler setpoint=60 --for 1h\n  frond edge device set boiler setpoint --end",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if end && lasts != 0 {
				return errors.New("--for and --end: choose one")
			}
			if end {
				return api.end(cmd.Context(), args[0], args[1:], by, cmd.OutOrStdout())
			}
			return api.set(cmd.Context(), args[0], args[1:], lasts, by, cmd.OutOrStdout())
		},
	}
	cmd.Flags().DurationVar(&lasts, "for", 0, "how long the values last, for example 1h; at most 168h")
	cmd.Flags().BoolVar(&end, "end", false, "end values that were set here")
	cmd.Flags().StringVar(&by, "by", userName(), "who sets the values, for the people in the cloud")
	return cmd
}

// userName is who uses the command: behind sudo the user who called it.
func userName() string {
	name := os.Getenv("SUDO_USER")
	if u, err := user.Current(); name == "" && err == nil {
		name = u.Username
	}
	return cmp.Or(name, "unknown")
}

func (a *deviceAPI) set(ctx context.Context, name string, assignments []string, lasts time.Duration, by string, out io.Writer) error {
	values := map[string]string{}
	for _, text := range assignments {
		property, value, ok := strings.Cut(text, "=")
		if _, twice := values[property]; !ok || property == "" || twice {
			return fmt.Errorf("%q: want PROPERTY=VALUE, each property once", text)
		}
		values[property] = value
	}
	switch {
	case len(values) == 0:
		return errors.New("want PROPERTY=VALUE, or --end")
	case lasts < time.Second:
		return errors.New("--for: values that are set here need an end, for example --for 1h")
	}
	body, err := json.Marshal(deviceview.OverrideRequest{Values: values, Seconds: int64(lasts / time.Second), By: by})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	d, err := a.change(ctx, name, "set", func(c rest.Interface) *rest.Request {
		return c.Put().Body(body).SetHeader("Content-Type", "application/json")
	})
	if err != nil {
		return err
	}
	for _, p := range d.Properties {
		if _, ok := values[p.Name]; ok && p.Override != nil {
			fmt.Fprintf(out, "device %s/%s: %s=%s until %s\n", d.Namespace, d.Name, p.Name, p.Override.Value, p.Override.Until.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

func (a *deviceAPI) end(ctx context.Context, name string, properties []string, by string, out io.Writer) error {
	d, err := a.change(ctx, name, "ended", func(c rest.Interface) *rest.Request {
		r := c.Delete().Param("by", by)
		for _, p := range properties {
			r = r.Param("property", p)
		}
		return r
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "device %s/%s: the values of its Device are driven again\n", d.Namespace, d.Name)
	return nil
}

// change sends a change of overrides. Without a clear answer it may have happened.
func (a *deviceAPI) change(ctx context.Context, name, what string, request func(rest.Interface) *rest.Request) (*deviceview.Device, error) {
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	rctx, cancel := context.WithTimeout(ctx, deviceTimeout)
	defer cancel()
	var d deviceview.Device
	err = decodeAnswer(request(client).AbsPath(a.path(name)+"/"+deviceview.OverrideSuffix).MaxRetries(0).Do(rctx), &d)
	switch {
	case err == nil:
		return &d, nil
	case apierrors.IsInvalid(err):
		return nil, &cli.ExitError{Code: exitRejected, Message: "rejected: " + err.Error()}
	case isRefusal(err):
		return nil, err
	}
	return nil, &cli.ExitError{Code: exitUncertain, Message: fmt.Sprintf(
		"no answer that says what became of it: the values may be %s. frond edge device get %s shows it\n  %v", what, name, err)}
}

// isRefusal reports whether edgecore itself says that nothing has changed.
func isRefusal(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code/100 == 4 || status.Status().Reason == metav1.StatusReasonServiceUnavailable
}

func (a *deviceAPI) path(name string) string {
	return deviceview.Path + "/" + a.edge.namespace + "/" + name
}

func (a *deviceAPI) client() (rest.Interface, error) {
	client, err := a.factory.KubernetesClientSet()
	if err != nil {
		return nil, err
	}
	return client.CoreV1().RESTClient(), nil
}

func (a *deviceAPI) list(ctx context.Context, all bool) ([]deviceview.Device, error) {
	var devices []deviceview.Device
	if err := a.read(ctx, deviceview.Path, &devices); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(devices, func(d deviceview.Device) bool { return !all && d.Namespace != a.edge.namespace }), nil
}

func (a *deviceAPI) get(ctx context.Context, name string) (*deviceview.Device, error) {
	var d deviceview.Device
	return &d, a.read(ctx, a.path(name), &d)
}

func (a *deviceAPI) read(ctx context.Context, path string, into any) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, deviceTimeout)
	defer cancel()
	return decodeAnswer(client.Get().AbsPath(path).Do(ctx), into)
}

func decodeAnswer(answer rest.Result, into any) error {
	if err := answer.Error(); err != nil { // in Kubernetes' words, unlike Raw's
		return err
	}
	data, err := answer.Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("understand edgecore: %w", err)
	}
	return nil
}

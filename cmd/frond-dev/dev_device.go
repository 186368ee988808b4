package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/cli"
	"github.com/frond-edge/frond/internal/devcluster/devices"
)

// deviceCommand is what frond dev device start, stop and ls share.
type deviceCommand struct {
	*cluster
	namespace string
	edge      string
	interval  time.Duration
	remove    bool
	output    cli.Output
}

func newDevice(c *cluster) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "device",
		Short: "Run virtual sensors at the gateways",
		Long: `Run virtual sensors at the gateways. A virtual sensor is a Device in Kubernetes and a process that speaks KubeEdge's MQTT topics with the
gateway's broker: it reports the numbers 1, 2, 3 … as its samples, each until the gateway has answered it, and applies its desired setpoint.`,
	}
	cmd.AddCommand(newDeviceStart(c), newDeviceStop(c), newDeviceList(c))
	return cmd
}

func newDeviceStart(c *cluster) *cobra.Command {
	d := &deviceCommand{cluster: c}
	cmd := &cobra.Command{
		Use:     "start NAME",
		Short:   "Create a Device with its model, and start a process that reports as it",
		Example: "  frond dev device start boiler --gateway edge-1 --every 100ms",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.start(cmd.Context(), args[0], cmd.ErrOrStderr())
		},
	}
	d.addNamespace(cmd)
	cmd.Flags().StringVar(&d.edge, "gateway", "edge-1", "gateway whose broker it reports to")
	cmd.Flags().DurationVar(&d.interval, "every", 200*time.Millisecond, "time between two samples, at least "+devices.MinInterval.String())
	return cmd
}

func newDeviceStop(c *cluster) *cobra.Command {
	d := &deviceCommand{cluster: c}
	cmd := &cobra.Command{
		Use:   "stop NAME",
		Short: "End the process of a virtual sensor",
		Long: `End the process of a virtual sensor. Its Device stays, so that samples that still wait on the gateway reach the hub, and frond dev device start
goes on with its numbers. With --delete the Device and its model are deleted, too, and samples that still wait become dead letters.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.stop(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	d.addNamespace(cmd)
	cmd.Flags().BoolVar(&d.remove, "delete", false, "delete the Device and its model, too, and forget the numbers")
	return cmd
}

func newDeviceList(c *cluster) *cobra.Command {
	d := &deviceCommand{cluster: c}
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the virtual sensors, with what they have sent and what was answered",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return d.list(cmd.OutOrStdout(), cmd.ErrOrStderr()) },
	}
	d.output.AddFlag(cmd)
	return cmd
}

func (d *deviceCommand) addNamespace(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&d.namespace, "namespace", "n", "default", "namespace of the Device")
}

func (d *deviceCommand) start(ctx context.Context, name string, talk io.Writer) error {
	dev, err := d.openCluster(talk)
	if err != nil {
		return err
	}
	return dev.StartDevice(ctx, devices.Device{Namespace: d.namespace, Name: name, Edge: d.edge, Interval: d.interval})
}

func (d *deviceCommand) stop(ctx context.Context, name string, out, talk io.Writer) error {
	dev, err := d.openCluster(talk)
	if err != nil {
		return err
	}
	stop := dev.StopDevice
	if d.remove {
		stop = dev.DeleteDevice
	}
	last, err := stop(ctx, d.namespace, name)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "device %s/%s: %d samples sent, %d answered, %d sent again\n", d.namespace, name, last.Sent, last.Answered, last.Repeated)
	return err
}

func (d *deviceCommand) list(out, talk io.Writer) error {
	dev, err := d.openCluster(talk)
	if err != nil {
		return err
	}
	list, err := dev.ListDevices()
	if err != nil {
		return err
	}
	if d.output.JSON() {
		return cli.PrintJSON(out, list)
	}
	table := cli.NewTable(out, "NAMESPACE", "DEVICE", "GATEWAY", "STATE", "PID", "SENT", "ANSWERED", "REPEATED", "SETPOINT", "PROBLEM")
	for _, s := range list {
		state, pid := "stopped", "-"
		if s.Running {
			state, pid = "connecting", fmt.Sprint(s.PID)
		}
		if s.Connected {
			state = "connected"
		}
		problem, _, _ := strings.Cut(s.Problem, "\n")
		table.AddRow(s.Namespace, s.Name, s.Edge, state, pid, s.Sent, s.Answered, s.Repeated, s.Setpoint, problem)
	}
	return table.Print()
}

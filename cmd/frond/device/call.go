package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/api/devicecall"
	"github.com/frond-edge/frond/cmd/frond/cloudcore"
	"github.com/frond-edge/frond/internal/cli"
)

const (
	// defaultCallTimeout is how long a mapper on KubeEdge's framework takes at most.
	defaultCallTimeout = 10 * time.Second
	// callGrace is how much longer cloudcore is waited for: it says itself that a gateway did not answer in time.
	callGrace = 15 * time.Second
	// exitFailed says that the mapper has answered with an error. The others are those of set.
	exitFailed = 3
)

type caller struct {
	cloudcore.Client
	namespace, data string
	timeout         time.Duration
	output          cli.Output
}

func newCall() *cobra.Command {
	c := &caller{}
	cmd := &cobra.Command{
		Use:   "call DEVICE METHOD --data [PROPERTY=]VALUE",
		Short: "Call a method of a device",
		Long: `Call a method of a device at its mapper, through cloudcore and the gateway's link. A method writes one of its properties; PROPERTY may be left out
if it has only one. The call is sent once, and is never repeated. It needs the right to create devices/call.

Exit codes: 0 the mapper says that it is done; 1 the call is refused, and was not sent; 3 the mapper answers with an error; 4 not sent: the gateway or the
mapper is away; 5 sent, and no answer within the time: it may have been executed.`,
		Example: "  frond device call boiler setTemperature --data 60\n  frond device call boiler adjust --data setpoint=60 --timeout 20s -o json",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.Run(cmd.Context(), args[0], args[1], cmd.OutOrStdout())
		},
	}
	c.AddFlags(cmd)
	c.output.AddFlag(cmd)
	cmd.Flags().StringVarP(&c.namespace, "namespace", "n", "", "namespace of the device (default that of the kubeconfig's context)")
	cmd.Flags().StringVar(&c.data, "data", "", "[PROPERTY=]VALUE to write")
	cmd.Flags().DurationVar(&c.timeout, "timeout", defaultCallTimeout, "how long the call may take, at most 25s")
	return cmd
}

// Run calls the method.
func (c *caller) Run(ctx context.Context, name, method string, out io.Writer) error {
	property, value, named := strings.Cut(c.data, "=")
	if !named {
		property, value = "", c.data
	}
	switch {
	case value == "":
		return errors.New("--data: want [PROPERTY=]VALUE, a method writes a value")
	case c.timeout < time.Millisecond || c.timeout > devicecall.MaxTimeout:
		return fmt.Errorf("--timeout: from 1ms to %s", devicecall.MaxTimeout)
	}
	if c.namespace == "" {
		namespace, err := c.Namespace()
		if err != nil {
			return err
		}
		c.namespace = namespace
	}
	body, err := json.Marshal(devicecall.Request{Method: method, Property: property, Value: value, Milliseconds: c.timeout.Milliseconds()})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	var answer devicecall.Answer
	path := devicecall.Path + "/" + url.PathEscape(c.namespace) + "/" + url.PathEscape(name)
	err = c.PostJSON(ctx, path, body, c.timeout+callGrace, &answer)
	if sent := (*cloudcore.SentError)(nil); errors.As(err, &sent) {
		answer = devicecall.Answer{Outcome: devicecall.Unknown, Reason: err.Error()}
	} else if err != nil {
		return err
	}
	if c.output.JSON() {
		if err := cli.PrintJSON(out, answer); err != nil {
			return err
		}
	}
	return c.conclude(c.namespace+"/"+name, &answer, out)
}

// conclude prints the outcome, and returns it as an exit code.
func (c *caller) conclude(id string, answer *devicecall.Answer, out io.Writer) error {
	switch answer.Outcome {
	case devicecall.Answered:
		if !c.output.JSON() {
			if err := printBody(out, answer); err != nil {
				return err
			}
		}
		if answer.Status/100 != 2 {
			return &cli.ExitError{Code: exitFailed, Message: fmt.Sprintf("device %s: the mapper answers with status %d", id, answer.Status)}
		}
		return nil
	case devicecall.Refused:
		return fmt.Errorf("device %s: refused: %s", id, answer.Reason)
	case devicecall.NotSent:
		return &cli.ExitError{Code: exitAway, Message: fmt.Sprintf("device %s: not sent: %s", id, answer.Reason)}
	default:
		return &cli.ExitError{Code: exitTimeOver, Message: fmt.Sprintf("device %s: outcome unknown, the call may have been executed: %s", id, answer.Reason)}
	}
}

func printBody(out io.Writer, answer *devicecall.Answer) error {
	text := strings.TrimSuffix(string(answer.Body), "\n")
	if answer.Truncated {
		text += "\n[the rest is cut off]"
	}
	_, err := fmt.Fprintln(out, text)
	return err
}

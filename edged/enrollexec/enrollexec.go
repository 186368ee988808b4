// Package enrollexec runs a gateway's enrolment in the program edgecore, for frond, which does not link the NATS server that the
// enrolment needs.
package enrollexec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/frond-edge/frond/edged/identitydir"
)

// Subcommand is edgecore's subcommand. It is hidden: its input may change with each version.
const Subcommand = "enroll"

// stopTimeout is how long edgecore may take to end after the caller has given up.
const stopTimeout = 5 * time.Second

// maxOptions bounds the input.
const maxOptions = 1 << 20

// Options is the input of the subcommand, as JSON. The proxy comes from the environment.
type Options struct {
	// Node is the name of the Node, and Dir the folder of the identity.
	Node string `json:"node"`
	Dir  string `json:"dir"`
	// Hubs are the hub's leaf listeners.
	Hubs []string `json:"hubs"`
	// Token is the join token, or TokenFile contains it.
	Token     string `json:"token,omitempty"`
	TokenFile string `json:"tokenFile,omitempty"`
	// CAHashes are the hashes of the hub's CA.
	CAHashes []string `json:"caHashes"`
	// Deadline is when to give up, and Timeout how long that was when the caller began, for the message.
	Deadline time.Time     `json:"deadline"`
	Timeout  time.Duration `json:"timeout"`
}

// result is the output of the subcommand, as JSON: a record, or why there is none.
type result struct {
	Record identitydir.Record `json:"record"`
	Error  string             `json:"error,omitempty"`
}

// Run enrols this machine by running edgecore, and returns the cloud's record, or the reason for its refusal. The end of ctx
// stops edgecore.
func Run(ctx context.Context, edgecore string, o Options) (identitydir.Record, error) {
	input, err := json.Marshal(o)
	if err != nil {
		return identitydir.Record{}, fmt.Errorf("encode the options: %w", err)
	}
	var out, talk bytes.Buffer
	cmd := exec.CommandContext(ctx, edgecore, Subcommand)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &talk
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopTimeout
	err = cmd.Run()
	var r result
	if jsonErr := json.Unmarshal(out.Bytes(), &r); jsonErr != nil {
		return r.Record, fmt.Errorf("%s %s: %w: %s (is it of the same version as frond?)",
			edgecore, Subcommand, errors.Join(err, jsonErr), bytes.TrimSpace(talk.Bytes()))
	}
	if r.Error != "" {
		return r.Record, errors.New(r.Error)
	}
	return r.Record, nil
}

// Serve is the other end of Run: it reads the options, enrols, and writes the result. An error of enrol is part of the result.
func Serve(ctx context.Context, in io.Reader, out io.Writer, enrol func(context.Context, Options) (identitydir.Record, error)) error {
	data, err := io.ReadAll(io.LimitReader(in, maxOptions))
	if err != nil {
		return fmt.Errorf("read the options: %w", err)
	}
	var o Options
	if err := json.Unmarshal(data, &o); err != nil {
		return fmt.Errorf("read the options: %w", err)
	}
	ctx, cancel := context.WithDeadlineCause(ctx, o.Deadline, fmt.Errorf("gave up after %s", o.Timeout))
	defer cancel()
	var r result
	if r.Record, err = enrol(ctx, o); err != nil {
		r.Error = err.Error()
	}
	return json.NewEncoder(out).Encode(r)
}

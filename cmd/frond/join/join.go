// Package join holds the commands that make this machine a gateway and undo it: frond join and frond reset.
package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpproxy"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/edged/enrollexec"
	"github.com/frond-edge/frond/edged/hostsetup"
	"github.com/frond-edge/frond/edged/hubca"
	"github.com/frond-edge/frond/edged/identitydir"
	"github.com/frond-edge/frond/internal/cli"
)

const (
	defaultConfig  = "/etc/frond/edgecore.yaml"
	defaultDir     = "/var/lib/frond"
	defaultUnits   = "/etc/systemd/system"
	defaultRuntime = "unix:///run/containerd/containerd.sock"
	// preflightFailed is the exit code when the machine fails a check.
	preflightFailed = 2
)

type joinCommand struct {
	hostsetup.Machine
	node, token, tokenFile, output string
	hashes, ignored, taints        []string
	timeout                        time.Duration
}

// NewJoin returns frond join.
func NewJoin() *cobra.Command {
	j := &joinCommand{}
	cmd := &cobra.Command{
		Use:   "join CLOUD:PORT --token TOKEN --ca-hash sha256:HASH",
		Short: "Make this machine a gateway of a cluster",
		Long: `Make this machine a gateway of a cluster. CLOUD:PORT is the hub's leaf listener, or wss://CLOUD its WebSocket one, also
behind an HTTP proxy (HTTPS_PROXY). frond token create --print-join-command, in the cloud, prints the whole line.

The machine is checked first. The gateway's key is generated here and never leaves; the token is sent only after the CA's hash was
verified. It is idempotent, and continues after a crash. frond reset undoes it.`,
		Example: `  frond join hub.example.com:7422 --token abcdef.0123456789abcdef --ca-hash sha256:4f2a…
  HTTPS_PROXY=http://proxy:3128 frond join wss://hub.example.com --token-file token --ca-hash sha256:4f2a… --node-name pump-7`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return j.Run(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&j.token, "token", "", "bootstrap token of the cluster")
	f.StringVar(&j.tokenFile, "token-file", "", "file that holds the token, to keep it out of the command line")
	f.StringSliceVar(&j.hashes, "ca-hash", nil, "hash of the hub's CA, sha256:…; may be given more than once")
	f.StringVar(&j.node, "node-name", "", "name of the Node (default: the host's name)")
	f.StringSliceVar(&j.taints, "taint", nil, "taint that the Node is registered with, KEY[=VALUE]:EFFECT; may be given more than once")
	f.StringSliceVar(&j.ignored, "ignore-preflight-errors", nil, "checks whose failure only warns, by id, or all")
	f.DurationVar(&j.timeout, "timeout", 5*time.Minute, "how long to wait for the cloud, and until the gateway is ready")
	f.BoolVar(&j.NoStart, "no-start", false, "do not start edgecore; print how to")
	f.StringVarP(&j.output, "output", "o", "", `"json" for machines`)
	cli.CompleteOutput(cmd, "json")
	machineFlags(cmd, &j.Machine)
	return cmd
}

func machineFlags(cmd *cobra.Command, m *hostsetup.Machine) {
	f := cmd.Flags()
	f.StringVar(&m.Dir, "dir", defaultDir, "folder for edgecore's data")
	f.StringVar(&m.Config, "config", defaultConfig, "edgecore's configuration file")
	f.StringVar(&m.Runtime, "runtime-endpoint", defaultRuntime, "socket of the container runtime")
	f.StringVar(&m.UnitDir, "unit-dir", defaultUnits, "where systemd finds units")
	_ = f.MarkHidden("unit-dir") // fails only for an unknown flag
}

// joinResult is the JSON output.
type joinResult struct {
	Node    string    `json:"node"`
	Cloud   string    `json:"cloud"`
	Key     string    `json:"key"`
	Expires time.Time `json:"expires"`
	// Already reports that nothing had to be done; Started that edgecore runs and is ready.
	Already bool `json:"already"`
	Started bool `json:"started"`
}

// Run joins the machine to the cluster.
func (j *joinCommand) Run(unlimited context.Context, cloud string, out, talk io.Writer) error {
	hub, err := j.completeOptions(cloud)
	taints, taintsErr := config.ParseTaints(j.taints)
	if err := errors.Join(err, taintsErr); err != nil {
		return err
	}
	until := time.Now().Add(j.timeout)
	ctx, cancel := context.WithDeadlineCause(unlimited, until, fmt.Errorf("gave up after %s", j.timeout))
	defer cancel()
	proxy := hubca.Proxy("", httpproxy.FromEnvironment())
	record, err := j.enrolledBefore()
	if err != nil {
		return err
	}
	before := record.Key != ""
	if !before {
		if err := j.runPreflight(ctx, hub, proxy, talk); err != nil {
			return err
		}
	}
	printPhase(talk, "enrol", "as %s at %s", j.node, hub)
	if !before {
		if record, err = j.enrol(unlimited, hub, until); err != nil {
			return fmt.Errorf("enrol %s: %w", j.node, err)
		}
	}
	result := joinResult{Node: record.Node, Cloud: hub, Key: record.Key, Expires: record.Expires}
	if before && j.isStarted(ctx) {
		result.Already = true
		printPhase(talk, "done", "this machine is already joined as %s; frond reset undoes it", record.Node)
		return j.printResult(out, result)
	}
	found, err := proxyURL(proxy, hub)
	if err != nil {
		return err
	}
	printPhase(talk, "configure", "%s", j.Config)
	if err := j.Configure(ctx, j.node, config.EdgeHub{URLs: []string{hub}, CAHashes: j.hashes, Proxy: found}, taints); err != nil {
		return err
	}
	was, _, err := j.Installed()
	if err != nil {
		return err
	}
	if result.Started, err = j.startEdgecore(ctx, was, talk); err != nil {
		return err
	}
	return j.printResult(out, result)
}

// completeOptions fills in defaults and returns all errors of the given options.
func (j *joinCommand) completeOptions(cloud string) (hub string, err error) {
	if j.node == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("name of this machine: %w", err)
		}
		j.node = strings.ToLower(host)
	}
	var faults []error
	if (j.token == "") == (j.tokenFile == "") {
		faults = append(faults, errors.New("give one of --token and --token-file"))
	}
	if len(j.hashes) == 0 {
		faults = append(faults, errors.New("give --ca-hash: without it anybody could answer in the cloud's place"))
	}
	for _, hash := range j.hashes {
		if !identity.ValidHash(hash) {
			faults = append(faults, fmt.Errorf("--ca-hash %s: want sha256: and 64 hexadecimal digits", hash))
		}
	}
	if j.output != "" && j.output != "json" {
		faults = append(faults, fmt.Errorf("output %q: choose json", j.output))
	}
	hub = cloud
	if !strings.Contains(cloud, "://") {
		hub = "tls://" + cloud
	}
	u, parseErr := url.Parse(hub)
	switch {
	case parseErr != nil || u.Hostname() == "" || u.Scheme != "tls" && u.Scheme != "wss":
		faults = append(faults, fmt.Errorf("%q: want CLOUD:PORT or wss://CLOUD", cloud))
	case u.Scheme == "tls" && u.Port() == "":
		faults = append(faults, fmt.Errorf("%q: the port is missing", cloud))
	}
	return hub, errors.Join(faults...)
}

// enrolledBefore returns the record of a machine that is enrolled and configured, so that only the start is left; one without a
// key for any other.
func (j *joinCommand) enrolledBefore() (identitydir.Record, error) {
	was, there, err := j.Installed()
	if err != nil || !there {
		return identitydir.Record{}, err
	}
	if was.Node != j.node {
		return identitydir.Record{}, fmt.Errorf("this machine is configured as %s in %s: run frond reset first, or give --node-name %s", was.Node, j.Config, was.Node)
	}
	folder, err := identitydir.Open(j.IdentityDir(), j.node)
	if err != nil {
		return identitydir.Record{}, err
	}
	return folder.Record, nil
}

// enrol enrols the machine by running edgecore; one that is enrolled stays as it is.
func (j *joinCommand) enrol(ctx context.Context, hub string, until time.Time) (identitydir.Record, error) {
	edgecore, err := hostsetup.FindEdgecore()
	if err != nil {
		return identitydir.Record{}, fmt.Errorf("put the program edgecore beside frond, or into the PATH: %w", err)
	}
	return enrollexec.Run(ctx, edgecore, enrollexec.Options{
		Node: j.node, Dir: j.IdentityDir(), Hubs: []string{hub}, Token: j.token, TokenFile: j.tokenFile, CAHashes: j.hashes,
		Deadline: until, Timeout: j.timeout,
	})
}

func (j *joinCommand) runPreflight(ctx context.Context, hub string, proxy func(*url.URL) (*url.URL, error), talk io.Writer) error {
	printPhase(talk, "preflight", "is this machine fit")
	cloud := hostsetup.Check{
		ID: "cloud", Hint: "compare address, port and hash with what frond token create printed; is a proxy needed (HTTPS_PROXY)?",
		Run: func(ctx context.Context) error { return hubca.CheckHub(ctx, hub, j.hashes, proxy) },
	}
	failed := 0
	for _, check := range hostsetup.Checks(j.Machine, j.node, []string{"127.0.0.1:10250", "127.0.0.1:10281"}, cloud) {
		err := check.Run(ctx)
		switch {
		case err == nil:
		case slices.Contains(j.ignored, check.ID), slices.Contains(j.ignored, "all"):
			_, _ = fmt.Fprintf(talk, "  warning  %s: %v\n", check.ID, err)
		default:
			failed++
			_, _ = fmt.Fprintf(talk, "  FAILED   %s: %v\n           %s\n", check.ID, err, check.Hint)
		}
	}
	if failed > 0 {
		return &cli.ExitError{Message: fmt.Sprintf("%d checks failed; nothing was changed. --ignore-preflight-errors=ID goes on in spite of one", failed), Code: preflightFailed}
	}
	return nil
}

// isStarted reports whether the start is done, or not requested.
func (j *joinCommand) isStarted(ctx context.Context) bool {
	if j.NoStart || !hostsetup.HasSystemd() {
		return true
	}
	edgecore, err := hostsetup.FindEdgecore()
	return err == nil && j.Started(ctx, edgecore)
}

// startEdgecore starts edgecore and waits until the gateway is ready, or prints how to start it.
func (j *joinCommand) startEdgecore(ctx context.Context, cfg config.EdgeCore, talk io.Writer) (bool, error) {
	edgecore, err := hostsetup.FindEdgecore()
	if err != nil {
		edgecore = "edgecore"
	}
	if j.NoStart || !hostsetup.HasSystemd() {
		printPhase(talk, "start", "left to you:\n  %s --config %s", edgecore, j.Config)
		return false, nil
	}
	printPhase(talk, "start", "edgecore, by systemd")
	if err := j.Install(edgecore); err != nil {
		return false, err
	}
	if err := j.Start(ctx); err != nil {
		return false, err
	}
	printPhase(talk, "wait", "until the gateway is ready")
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		err := hostsetup.Ready(ctx, cfg.Listen)
		if err == nil {
			printPhase(talk, "done", "%s is a gateway: kubectl get node %s", j.node, j.node)
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("%w: %w; edgecore keeps trying, see journalctl -u edgecore", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

func (j *joinCommand) printResult(out io.Writer, result joinResult) error {
	if j.output != "json" {
		return nil
	}
	return cli.PrintJSON(out, result)
}

func printPhase(talk io.Writer, name, format string, args ...any) {
	_, _ = fmt.Fprintf(talk, "%-10s %s\n", name, fmt.Sprintf(format, args...))
}

// proxyURL returns the proxy of this shell's environment, which a service does not have.
func proxyURL(find func(*url.URL) (*url.URL, error), hub string) (string, error) {
	u, err := url.Parse(hub)
	if err != nil {
		return "", err
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "443")
	}
	found, err := find(u)
	if err != nil || found == nil {
		return "", err
	}
	return found.String(), nil
}

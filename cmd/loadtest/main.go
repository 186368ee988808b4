// Command loadtest prints the numbers of the README, measured on a real development cluster of this machine.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/loadtest"
)

func main() { os.Exit(run(os.Args, os.Stdout, os.Stderr)) }

// run prints the table and then, as its last line, the JSON to stdout; progress goes to stderr.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	flags := flag.NewFlagSet("loadtest", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("dir", "", "folder for the clusters, taken down at the end (default: a temporary one)")
	seed := flags.Uint64("seed", 1, "seed of the contents of objects")
	short := flags.Bool("short", false, "do little: shows that it works, its numbers mean nothing")
	only := flags.String("only", "", "stages to run, of containerd,services,hollow,delivery,attached,away,tunnel,fan-out,devices (default: all)")
	size := flags.String("size", "", `JSON that changes the size, as in {"Rounds":3,"Devices":{"Clients":50}}`)
	programs := flags.String("programs", "", "JSON file that names the programs, instead of building them")
	if err := flags.Parse(args[1:]); err != nil {
		return 2
	}
	o := loadtest.Options{Command: strings.Join(append([]string{filepath.Base(args[0])}, args[1:]...), " "), Dir: *dir, Seed: *seed, Size: loadtest.Full(), Progress: stderr}
	if *short {
		o.Size = loadtest.Short()
	}
	if *size != "" {
		if err := json.Unmarshal([]byte(*size), &o.Size); err != nil {
			fmt.Fprintln(stderr, "error: size:", err)
			return 2
		}
	}
	if *programs != "" {
		o.Programs = func(context.Context, devcluster.Spec) (paths toolchain.Paths, err error) {
			data, err := os.ReadFile(*programs)
			if err == nil {
				err = json.Unmarshal(data, &paths)
			}
			if err != nil {
				err = fmt.Errorf("read programs %s: %w", *programs, err)
			}
			return paths, err
		}
	}
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	report, err := loadtest.Run(ctx, o)
	report.Setup.Print(stdout)
	for _, print := range []func(io.Writer) error{report.Print, report.JSON} {
		if err := print(stdout); err != nil {
			fmt.Fprintln(stderr, "error:", err)
			return 1
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "error:", err)
		return 1
	}
	return 0
}

// Command frond-dev runs a complete Frond cluster on one machine, for development and demonstrations. frond dev runs it.
package main

import (
	"io"
	"os"

	"github.com/frond-edge/frond/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	return cli.Run(newRoot(), args, stdout, stderr)
}

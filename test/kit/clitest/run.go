package clitest

import (
	"bytes"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/cli"
)

// Run runs a command line of root in this process.
func Run(root *cobra.Command, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = cli.Run(root, args, &out, &errs)
	return code, out.String(), errs.String()
}

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// devProgram is the program of the development cluster. It is apart because it links a Kubernetes control plane's and a hub's parts.
const devProgram = "frond-dev"

// newDev runs frond-dev with the words that follow.
func newDev() *cobra.Command {
	return &cobra.Command{
		Use:   "dev",
		Short: "Run a complete Frond cluster on this machine (runs frond-dev)",
		// frond-dev reads its own flags, --help included.
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return runDev(args) },
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			return completeDev(cmd, append(args, toComplete))
		},
	}
}

// findDevProgram finds frond-dev beside this program, or on PATH.
func findDevProgram() (string, error) {
	if self, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(self), devProgram); isProgram(beside) {
			return beside, nil
		}
	}
	found, err := exec.LookPath(devProgram)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside frond nor on PATH: install it with go install ./cmd/%s in a clone of Frond, or run go run ./cmd/%s there", devProgram, devProgram, devProgram)
	}
	return found, nil
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// runDev becomes frond-dev: it has this process's terminal, signals and exit code.
func runDev(args []string) error {
	program, err := findDevProgram()
	if err != nil {
		return err
	}
	if err := syscall.Exec(program, append([]string{devProgram}, args...), os.Environ()); err != nil { //nolint:gosec // found above, by a fixed name
		return fmt.Errorf("run %s: %w", program, err)
	}
	return nil
}

// completeDev asks frond-dev for the completions of its own command line.
func completeDev(cmd *cobra.Command, words []string) ([]string, cobra.ShellCompDirective) {
	program, err := findDevProgram()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	out, err := exec.CommandContext(cmd.Context(), program, append([]string{cobra.ShellCompNoDescRequestCmd}, words...)...).Output()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[:len(lines)-1], cobra.ShellCompDirectiveNoFileComp // the last line is the directive
}

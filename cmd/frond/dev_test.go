package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// runDevVariable makes the test binary run frond dev, which replaces its process.
const runDevVariable = "FROND_TEST_RUN_DEV"

// TestDev_BecomesFrondDev checks that frond-dev gets the arguments as they are, and that its output and exit code are those of frond dev.
func TestDev_BecomesFrondDev(t *testing.T) {
	if os.Getenv(runDevVariable) != "" {
		os.Exit(run([]string{"dev", "exec", "edge-1", "--", "sh", "-c", "a b", "--help"}, os.Stdout, os.Stderr))
	}
	dir := t.TempDir()
	script := "#!/bin/sh\nfor word; do echo \"<$word>\"; done\nexit 7\n"
	if err := os.WriteFile(filepath.Join(dir, devProgram), []byte(script), 0o700); err != nil { //nolint:gosec // a program of the test
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), self, "-test.run=^TestDev_BecomesFrondDev$")
	child.Env = append(os.Environ(), runDevVariable+"=1", "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := child.CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if want := "<exec>\n<edge-1>\n<-->\n<sh>\n<-c>\n<a b>\n<--help>\n"; !ok || exit.ExitCode() != 7 || string(out) != want {
		t.Errorf("%v, output\n%s\nwant exit code 7 and\n%s", err, out, want)
	}
}

func TestDev_SaysWhereToGetFrondDev(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	code, out, errs := runFrond("dev", "up")
	if code != 1 || out != "" || !strings.Contains(errs, "go install ./cmd/frond-dev") {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
}

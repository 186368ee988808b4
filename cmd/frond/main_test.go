package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/frond-edge/frond/test/kit/clitest"
)

// runFrond runs a command line in this process.
func runFrond(args ...string) (code int, stdout, stderr string) {
	return clitest.Run(newRoot(), args...)
}

func TestCommandLine(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("FROND_CLOUDCORE", "")
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	for name, tt := range map[string]struct {
		args    []string
		code    int
		out     string
		problem string
	}{
		"unknown":         {args: []string{"grow"}, code: 1, problem: `unknown command "grow"`},
		"mistyped":        {args: []string{"token", "lst"}, code: 1, problem: "is it list?"},
		"group alone":     {args: []string{"token"}, out: "frond token [command]"},
		"version":         {args: []string{"version", "-o", "json"}, out: `"version": "devel"`},
		"completion":      {args: []string{"__complete", "node", "list", "-o", ""}, out: "wide\njson\n"},
		"status, unasked": {args: []string{"status"}, code: 1, problem: "give --server or set FROND_CLOUDCORE"},
		"status, plain":   {args: []string{"status", "--server", "http://127.0.0.1:1"}, code: 1, problem: "want https://host:port"},
		"status, two":     {args: []string{"status", "a", "b"}, code: 1, problem: "at most 1 arg"},
		"status, output":  {args: []string{"status", "-o", "xml"}, code: 1, problem: "choose json"},
		"sync, no node":   {args: []string{"sync"}, code: 1, problem: "accepts 1 arg"},
		"sync, nobody":    {args: []string{"sync", "a", "--server", "https://127.0.0.1:1"}, code: 1, problem: "kubeconfig: "},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := runFrond(tt.args...)
			if code != tt.code || !strings.Contains(out, tt.out) || !strings.Contains(errs, tt.problem) {
				t.Errorf("code %d, stdout %q, stderr %q; want code %d, %q, %q", code, out, errs, tt.code, tt.out, tt.problem)
			}
			if code != 0 && out != "" {
				t.Errorf("an error wrote to stdout: %q", out)
			}
		})
	}
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAWrongConfigurationIsNamed(t *testing.T) {
	for name, tt := range map[string]struct{ content, want string }{
		"unknown key": {"nodes: a\n", `unknown field "nodes"`},
		"nothing":     {"{}\n", "node: required"},
		"runtime":     {"node: a\ndir: /a\n", "runtime.endpoint: required"},
		"log level":   {"node: a\ndir: /tmp\nruntime: {hollow: true}\nlogLevel: loud\nhub: {urls: ['nats://h:1']}\n", "log level"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "edgecore.yaml")
			if err := os.WriteFile(file, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, talk bytes.Buffer
			if code := run([]string{"--config", file}, &out, &talk); code != 1 || !strings.Contains(talk.String(), tt.want) {
				t.Errorf("exit %d, %q, want 1 and %q", code, talk.String(), tt.want)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	var out, talk bytes.Buffer
	if code := run([]string{"version"}, &out, &talk); code != 0 || strings.TrimSpace(out.String()) == "" {
		t.Errorf("exit %d, %q, %q", code, out.String(), talk.String())
	}
}

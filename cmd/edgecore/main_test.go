package main

import (
	"strings"
	"testing"
)

func TestServeEdgecore_InvalidConfiguration(t *testing.T) {
	for name, tt := range map[string]struct{ content, want string }{
		"unknown key": {"nodes: a\n", `unknown field "nodes"`},
		"nothing":     {"{}\n", "node: required"},
		"runtime":     {"node: a\ndir: /a\n", "runtime.endpoint: required"},
		"log level":   {"node: a\ndir: /tmp\nruntime: {hollow: true}\nlogLevel: loud\nhub: {urls: ['nats://h:1']}\n", "log level"},
	} {
		if err := serveEdgecore(t.Context(), []byte(tt.content)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}

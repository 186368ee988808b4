package main

import (
	"strings"
	"testing"
)

func TestServeCloudcore_InvalidConfiguration(t *testing.T) {
	for name, tt := range map[string]struct{ content, want string }{
		"unknown key": {"hubs: {}\n", `unknown field "hubs"`},
		"no hub":      {"id: a\n", "hub.urls: at least one is required"},
		"replicas":    {"replicas: 2\nhub: {urls: ['nats://h:1'], nkeyFile: a, caFile: b, certFile: c, keyFile: d}\n", "replicas: 2 is not one of"},
		"log level":   {"logLevel: loud\nhub: {urls: ['nats://h:1'], nkeyFile: a, caFile: b, certFile: c, keyFile: d}\n", "log level"},
	} {
		if err := serveCloudcore(t.Context(), []byte(tt.content)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}

package config_test

import (
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/config"
)

func TestRules_AllowedTargets(t *testing.T) {
	good := config.Rules{AllowedTargets: []string{"10.20.0.0/16", "fd00::/8", "127.0.0.1/32"}}
	if all, err := good.Prefixes(); err != nil || len(all) != 3 || all[0].String() != "10.20.0.0/16" {
		t.Errorf("%v, %v", all, err)
	}
	for _, text := range []string{"10.20.0.1/16", "10.20.0.0", "localhost", ""} {
		if _, err := (config.Rules{AllowedTargets: []string{"10.0.0.0/8", text}}).Prefixes(); err == nil || !strings.Contains(err.Error(), "rules.allowedTargets[1]") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What the entry needs it takes from inspect, and an insecure one is on loopback unless it is told otherwise.
func TestRules_Entry(t *testing.T) {
	inspect := config.Inspect{CertFile: "i.crt", KeyFile: "i.key", ClientCAFile: "i-ca.crt"}
	for name, tt := range map[string]struct{ entry, want config.RuleEntry }{
		"none":         {config.RuleEntry{}, config.RuleEntry{CertFile: "i.crt", KeyFile: "i.key", ClientCAFile: "i-ca.crt"}},
		"own files":    {config.RuleEntry{Address: ":9443", CertFile: "a", KeyFile: "b"}, config.RuleEntry{Address: ":9443", CertFile: "a", KeyFile: "b", ClientCAFile: "i-ca.crt"}},
		"insecure":     {config.RuleEntry{Insecure: true}, config.RuleEntry{Address: "127.0.0.1:9443", Insecure: true}},
		"insecure, on": {config.RuleEntry{Address: ":9443", Insecure: true}, config.RuleEntry{Address: ":9443", Insecure: true}},
	} {
		if got := tt.entry.WithDefaults(inspect); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
	for text, want := range map[string]string{
		"id: a\nhub: {urls: [nats://a]}\nrules: {entry: {address: ':9443'}}":                          "rules.entry.certFile",
		"id: a\nhub: {urls: [nats://a]}\nrules: {entry: {address: nowhere, certFile: a, keyFile: b}}": "rules.entry.address",
		"id: a\nhub: {urls: [nats://a]}\nrules: {entry: {insecure: true, certFile: a}}":               "rules.entry.insecure",
	} {
		if _, err := config.ParseCloudCore([]byte(text), "a"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := config.ParseEdgeCore([]byte("node: a\ndir: /a\nserviceBus: {ports: [9000, 0]}")); err == nil || !strings.Contains(err.Error(), "serviceBus.ports[1]") {
		t.Errorf("ports of services: %v", err)
	}
	if got := (config.ServiceBus{Ports: []int{9000, 65535}}).Numbers(); len(got) != 2 || got[1] != 65535 {
		t.Errorf("ports of services: %v", got)
	}
}

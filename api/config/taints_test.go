package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/config"
)

func TestParseTaints(t *testing.T) {
	got, err := config.ParseTaints([]string{"node-role.kubernetes.io/edge:NoSchedule", "site=7:NoExecute"})
	want := []corev1.Taint{{Key: "node-role.kubernetes.io/edge", Effect: corev1.TaintEffectNoSchedule}, {Key: "site", Value: "7", Effect: corev1.TaintEffectNoExecute}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := config.ParseTaints([]string{"site:NoExecute", "site=7:NoExecute"}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("two of one key and effect: %v", err)
	}
	for _, text := range []string{"", "site", "site=7", ":NoSchedule", "site:Never", "a b:NoSchedule", "site=a b:NoSchedule", "site:NoSchedule:"} {
		if got, err := config.ParseTaints([]string{text}); err == nil || !strings.Contains(err.Error(), "KEY[=VALUE]:EFFECT") {
			t.Errorf("%q is taken for %v, %v", text, got, err)
		}
	}
}

func TestEdgeCore_RegisterWithTaints(t *testing.T) {
	const head = "node: a\ndir: /d\nhub: {urls: ['tls://h:1'], caHashes: ['sha256:0000000000000000000000000000000000000000000000000000000000000000']}\nruntime: {hollow: true}\n"
	c, err := config.ParseEdgeCore([]byte(head + "kubelet: {registerWithTaints: [{key: site, value: x, effect: NoSchedule}, {key: site, effect: NoExecute}]}"))
	if err != nil || len(c.Kubelet.RegisterWithTaints) != 2 {
		t.Errorf("%+v, %v", c.Kubelet, err)
	}
	for fault, taints := range map[string]string{
		"[0]: effect":                         "[{key: site}]",
		"[0]: key":                            "[{effect: NoSchedule}]",
		"[1]: site:NoSchedule is there twice": "[{key: site, effect: NoSchedule}, {key: site, value: x, effect: NoSchedule}]",
		"unknown field":                       "[{key: site, effect: NoSchedule, until: never}]",
	} {
		if _, err := config.ParseEdgeCore([]byte(head + "kubelet: {registerWithTaints: " + taints + "}")); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v", taints, err)
		}
	}
}

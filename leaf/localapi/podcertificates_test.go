package localapi_test

import (
	"testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi"
)

// TestPodCertificate_SurvivesOfflineReboot: a saved certificate is returned for the same pod, and only while no new one is available.
func TestPodCertificate_SurvivesOfflineReboot(t *testing.T) {
	online := true
	link := func(c *localapi.Config) { c.Online = func() bool { return online } }
	g := newGateway(t, true, link)
	g.deliverObjects(newPod("web", "u1", "1"), newPod("old", "u0", "1"))
	save := func(name, uid, key string) {
		t.Helper()
		if err := g.api.SavePodCertificate(t.Context(), "default", name, uid, "certs/0", []byte(key), []byte("chain")); err != nil {
			t.Fatal(err)
		}
	}
	save("old", "u0", "old key")
	save("web", "u1", "first key")
	save("web", "u1", "second key")
	revision := g.store.Revision()
	save("web", "u1", "second key")
	if g.store.Revision() != revision {
		t.Error("what is kept already was written again")
	}
	if _, _, ok := g.api.LastPodCertificate("default", "u1", "certs/0"); ok {
		t.Error("a kept certificate is given though a new one can be had")
	}
	g.stop()
	online = false
	g.start(link)
	if key, chain, ok := g.api.LastPodCertificate("default", "u1", "certs/0"); !ok || string(key) != "second key" || string(chain) != "chain" {
		t.Errorf("offline: %q %q %v", key, chain, ok)
	}
	for _, other := range [][2]string{{"u2", "certs/0"}, {"u1", "certs/1"}} {
		if _, _, ok := g.api.LastPodCertificate("default", other[0], other[1]); ok {
			t.Errorf("given to %v", other)
		}
	}
	g.deliverTombstone(newPod("old", "u0", "2"))
	save("web", "u1", "third key")
	held, _ := g.store.List("frond.io", "podcertificates", "")
	if len(held) != 1 {
		t.Errorf("%d are kept for one pod", len(held))
	}
	if !localapi.IsSecret(held[0].Key) || localapi.IsSecret(wire.Key{Group: "frond.io", Resource: "wants"}) {
		t.Error("keys of certificates are not sealed on the disk, or all is")
	}
}

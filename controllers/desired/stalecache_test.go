package desired_test

import (
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
)

// watchBlocker holds back the events of an apiserver's watches, as if it had just started.
type watchBlocker struct {
	mu   sync.Mutex
	open chan struct{} // guarded by mu; closed while no event is held back
}

func newWatchBlocker() *watchBlocker {
	d := &watchBlocker{open: make(chan struct{})}
	close(d.open)
	return d
}

func (d *watchBlocker) openSignal() chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open
}

func (d *watchBlocker) blockWatches() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = make(chan struct{})
}

func (d *watchBlocker) wrapConfig(config *rest.Config) {
	config.Wrap(func(to http.RoundTripper) http.RoundTripper { return blockingTransport{to, d} })
}

type blockingTransport struct {
	http.RoundTripper

	blocker *watchBlocker
}

func (l blockingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.Query().Get("watch") != "" {
		response.Body = blockingBody{response.Body, l.blocker, r}
	}
	return response, err
}

type blockingBody struct {
	io.ReadCloser

	blocker *watchBlocker
	request *http.Request
}

func (h blockingBody) Read(to []byte) (int, error) {
	n, err := h.ReadCloser.Read(to)
	select {
	case <-h.blocker.openSignal():
	case <-h.request.Context().Done():
	}
	return n, err
}

// A replica whose watch is behind takes over a node. The stale state of a changed object or of a deleted one, and the
// absence of a new one, must not be published; nor what follows from that for unchanged objects: one that a new pod
// needs is not removed, and one that nothing needs any more is not published again. When the watch has caught up, there
// is nothing to do.
func TestEngine_StaleCacheTakesNothingBack(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	node := w.createNode("a")
	w.createConfigMap("old", "first")
	for _, name := range []string{"changed", "deleted", "released"} {
		w.createConfigMap(name, "first")
		w.createPod("with-"+name, node, mountConfigMap(name))
	}
	first, second := &fakeOwnership{}, &fakeOwnership{}
	second.setOwned(node, false)
	cfg := desired.Config{NoServices: true, TombstoneAge: time.Hour, Guard: desired.Guard{Settle: 20 * time.Millisecond}}
	w.startEngine(cfg, first, "desired-first")
	ear, mine := newWatchBlocker(), &counted{Publisher: w.publisher.Publisher, count: map[wire.Key]map[string]int{}}
	w.startEngineWatching(ear, mine, cfg, second, "desired-second")
	changed, gone, added := coreKey("configmaps", w.ns, "changed"), coreKey("configmaps", w.ns, "deleted"), coreKey("configmaps", w.ns, "added")
	before := w.eventuallyMessage(node, changed, "published", isApplied)
	w.eventuallyMessage(node, gone, "published", isApplied)

	ear.blockWatches()
	w.setConfigMap("changed", "second")
	w.eventuallyMessage(node, changed, "published again", func(m wire.Message) bool { return m.Version != before.Version })
	w.createConfigMap("added", "first")
	w.createPod("with-added", node, mountConfigMap("added"))
	w.eventuallyMessage(node, added, "published", isApplied)
	w.eventuallyMessage(node, coreKey("pods", w.ns, "with-added"), "published", isApplied)
	if err := w.client.CoreV1().ConfigMaps(w.ns).Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallyMessage(node, gone, "deleted", isDeleted)
	old, released := coreKey("configmaps", w.ns, "old"), coreKey("configmaps", w.ns, "released")
	w.createPod("with-old", node, mountConfigMap("old"))
	w.eventuallyMessage(node, old, "published", isApplied)
	w.deletePod("with-released")
	w.eventuallyMessage(node, released, "released", isDeleted)
	first.setOwned(node, false)
	second.setOwned(node, true)
	<-time.After(time.Second) // a wrong action takes some milliseconds
	close(ear.openSignal())
	w.checkUntouched(node, "witness", "pods with-changed", "pods with-deleted", "pods with-added", "pods with-old", "configmaps changed",
		"configmaps added", "configmaps old", "serviceaccounts default")
	mine.mu.Lock()
	defer mine.mu.Unlock()
	for _, k := range []wire.Key{changed, gone, added, coreKey("pods", w.ns, "with-added"), old, released, coreKey("pods", w.ns, "with-old")} {
		if n := mine.count[k][node]; n > 0 {
			t.Errorf("%s was published %d times by who is behind", k.Human(), n)
		}
	}
	if len(mine.count) == 0 {
		t.Error("the second replica has published nothing")
	}
}

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

// deaf holds back what an apiserver says in its watches, as one does that has just begun.
type deaf struct {
	mu   sync.Mutex
	hear chan struct{} // guarded by mu; closed while all is heard
}

func hearing() *deaf {
	d := &deaf{hear: make(chan struct{})}
	close(d.hear)
	return d
}

func (d *deaf) now() chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hear
}

func (d *deaf) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hear = make(chan struct{})
}

func (d *deaf) over(config *rest.Config) {
	config.Wrap(func(to http.RoundTripper) http.RoundTripper { return listening{to, d} })
}

type listening struct {
	http.RoundTripper

	deaf *deaf
}

func (l listening) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.Query().Get("watch") != "" {
		response.Body = heard{response.Body, l.deaf, r}
	}
	return response, err
}

type heard struct {
	io.ReadCloser

	deaf *deaf
	of   *http.Request
}

func (h heard) Read(to []byte) (int, error) {
	n, err := h.ReadCloser.Read(to)
	select {
	case <-h.deaf.now():
	case <-h.of.Context().Done():
	}
	return n, err
}

// A replica whose watch is behind takes over a node: what its cache still holds of a changed object, of a deleted one, and the
// absence of a new one, must not go to the node; nor what follows from that for objects that have not changed: one that a new pod needs is
// not taken away, and one that nothing needs any more does not come back. When it has heard, there is nothing to do.
func TestAReplicaThatIsBehindTakesNothingBack(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	node := w.node("a")
	w.configMap("old", "first")
	for _, name := range []string{"changed", "deleted", "released"} {
		w.configMap(name, "first")
		w.pod("with-"+name, node, mountConfigMap(name))
	}
	first, second := &owners{}, &owners{}
	second.set(node, false)
	cfg := desired.Config{NoServices: true, TombstoneAge: time.Hour, Guard: desired.Guard{Settle: 20 * time.Millisecond}}
	w.engine(cfg, first, "desired-first")
	ear, mine := hearing(), &counted{Publisher: w.publisher.Publisher, count: map[wire.Key]map[string]int{}}
	w.engineHearing(ear, mine, cfg, second, "desired-second")
	changed, gone, added := key("configmaps", w.ns, "changed"), key("configmaps", w.ns, "deleted"), key("configmaps", w.ns, "added")
	before := w.eventually(node, changed, "published", applied)
	w.eventually(node, gone, "published", applied)

	ear.stop()
	w.setConfigMap("changed", "second")
	w.eventually(node, changed, "published again", func(m wire.Message) bool { return m.Version != before.Version })
	w.configMap("added", "first")
	w.pod("with-added", node, mountConfigMap("added"))
	w.eventually(node, added, "published", applied)
	w.eventually(node, key("pods", w.ns, "with-added"), "published", applied)
	if err := w.client.CoreV1().ConfigMaps(w.ns).Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually(node, gone, "deleted", deleted)
	old, released := key("configmaps", w.ns, "old"), key("configmaps", w.ns, "released")
	w.pod("with-old", node, mountConfigMap("old"))
	w.eventually(node, old, "published", applied)
	w.deletePod("with-released")
	w.eventually(node, released, "released", deleted)
	first.set(node, false)
	second.set(node, true)
	<-time.After(time.Second) // what is done wrong takes some milliseconds
	close(ear.now())
	w.untouched(node, "witness", "pods with-changed", "pods with-deleted", "pods with-added", "pods with-old", "configmaps changed",
		"configmaps added", "configmaps old", "serviceaccounts default")
	mine.mu.Lock()
	defer mine.mu.Unlock()
	for _, k := range []wire.Key{changed, gone, added, key("pods", w.ns, "with-added"), old, released, key("pods", w.ns, "with-old")} {
		if n := mine.count[k][node]; n > 0 {
			t.Errorf("%s was published %d times by who is behind", k.Human(), n)
		}
	}
	if len(mine.count) == 0 {
		t.Error("the second replica has published nothing")
	}
}

package suite_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/test/faults"
)

// randomText returns text of this many bytes that does not compress well.
func randomText(bytes int, seed byte) string {
	data := make([]byte, bytes/4*3)
	source := rand.NewChaCha8([32]byte{seed})
	_, _ = source.Read(data) // never fails
	return base64.StdEncoding.EncodeToString(data)
}

// TestLargeObject_SlowLink: an object of 900 KB to a gateway at LARGE_RATE bytes a second (1 Mbit/s) takes longer than a link may be
// silent. It arrives in spite of a reset, with the pieces received before. No small object of that gateway, and no object of another
// gateway, waits for it.
func TestLargeObject_SlowLink(t *testing.T) {
	shared.awaitSettled(t)
	const node, other, size = "edge-1", "edge-2", 900 << 10
	rate := envUint(t, "LARGE_RATE", 125_000)
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Shape(t.Context(), node, wan.Shape{Rate: int(rate)}) })
	huge := faults.Name(node, "map", 3)
	patch := fmt.Appendf(nil, `{"data":{"n":"huge","noise":%q}}`, randomText(size, 1))
	if err := shared.putConfigMap(t.Context(), huge, "small"); err != nil {
		t.Fatal(err)
	}
	before, began := shared.bytesDown(t, node), time.Now()
	if _, err := shared.kube.CoreV1().ConfigMaps(faults.Namespace).Patch(t.Context(), huge, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	elsewhere := shared.timeChange(t, other, faults.Name(other, "map", 4), "beside")
	small := shared.timeChange(t, node, faults.Name(node, "map", 4), "behind")
	if shared.hasValue(t, node, huge, "huge") {
		t.Error("the small object came behind the huge one")
	}
	shared.eventually(t, "half of the huge object comes", waitTimeout, func(context.Context) string {
		if came := shared.bytesDown(t, node) - before; came < size/2 {
			return fmt.Sprintf("%d bytes", came)
		}
		return ""
	})
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Reset(t.Context(), node) })
	after := shared.timeChange(t, node, faults.Name(node, "map", 5), "after the reset")
	deadline := time.Now().Add(waitTimeout + 2*size*time.Second/time.Duration(rate))
	for !shared.hasValue(t, node, huge, "huge") && time.Now().Before(deadline) {
		<-time.After(50 * time.Millisecond)
	}
	shared.awaitValue(t, node, huge, "huge")
	took, came := time.Since(began), shared.bytesDown(t, node)-before
	t.Logf("the huge object took %s and %.2f times its bytes, a small one behind it %s, one after a reset %s, one of another gateway %s",
		took.Round(time.Millisecond), float64(came)/size, small.Round(time.Millisecond), after.Round(time.Millisecond), elsewhere.Round(time.Millisecond))
	if most := size*16/10 + 2*int64(rate); came > most { // a piece of up to 2 s is sent again after the reset
		t.Errorf("%d bytes came for an object of %d, more than %d", came, size, most)
	}
	shared.awaitSettled(t)
}

// bytesDown counts the bytes received by a gateway so far.
func (r *testCluster) bytesDown(t *testing.T, node string) int64 {
	t.Helper()
	var bytes int64
	r.mustCluster(t, func(c *devcluster.Cluster) error {
		for _, e := range c.Status(t.Context()).Edges {
			if e.Name == node {
				bytes = e.DownBytes
			}
		}
		return nil
	})
	return bytes
}

// hasValue reports whether a gateway has a ConfigMap with a value.
func (r *testCluster) hasValue(t *testing.T, node, name, value string) bool {
	t.Helper()
	var o corev1.ConfigMap
	return r.storedObject(t.Context(), node, "configmaps", name, &o) == nil && o.Data["n"] == value
}

// createLargeMaps creates ConfigMaps that are sent in pieces, until ctx ends. The rest of the workload makes them small again,
// often during the transfer.
func (w *workload) createLargeMaps(ctx context.Context) error {
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		name := faults.Name(nodes[i%len(nodes)], "map", 0)
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
		patch := fmt.Appendf(nil, `{"data":{"n":"%d","pad":%q}}`, w.n.Add(1), randomText(500<<10, byte(i)))
		_, err := w.rig.kube.CoreV1().ConfigMaps(faults.Namespace).Patch(sctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		cancel()
		if err != nil {
			w.failed.Add(1) // it may be deleted
		}
	}
}

package nodetunnel_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/frond-edge/frond/edged/nodetunnel"
)

// pendingCertificate is a kubelet that gets its serving certificate when issued closes.
type pendingCertificate struct{ issued chan struct{} }

func (c pendingCertificate) Await(ctx context.Context) error {
	select {
	case <-c.issued:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestServingGate_WaitsForTheCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kubelet := pendingCertificate{make(chan struct{})}
		pass := nodetunnel.NewServingGate(kubelet).AwaitCertificate
		began := time.Now()
		if why := pass(t.Context()); !strings.Contains(why, "kubectl get csr") {
			t.Errorf("without a certificate a call is refused with %q", why)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it was held for %v: cloudcore takes the node for silent", took)
		}
		go func() {
			time.Sleep(500 * time.Millisecond) //nolint:forbidigo // the bubble's clock
			close(kubelet.issued)
		}()
		began = time.Now()
		if why := pass(t.Context()); why != "" || time.Since(began) != 500*time.Millisecond {
			t.Errorf("a call during which the certificate comes: %q after %v", why, time.Since(began))
		}
	})
}

// If no signer signs kubelet certificates, an apiserver that verifies none still reaches the kubelet.
func TestServingGate_OpensAfterGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pass := nodetunnel.NewServingGate(pendingCertificate{make(chan struct{})}).AwaitCertificate
		began, refused := time.Now(), 0
		for pass(t.Context()) != "" {
			if refused++; refused > 100 {
				t.Fatal("calls are refused for ever")
			}
		}
		if took := time.Since(began); took < 50*time.Second || took > 70*time.Second {
			t.Errorf("calls are refused for %v, want a minute", took)
		}
	})
}

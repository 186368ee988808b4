package nodenames_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/nodenames"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestResolver_NamesComeFromTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hostname atomic.Value // a string
		hostname.Store("edge-1")  // as the kubelet creates the Node
		var named atomic.Bool     // by the cloud
		var asked atomic.Int64
		link := streamstest.NewSwitchableLink()
		link.SetUp(false)
		resolver := nodenames.New("edge-1", func(_ context.Context, r wire.KubeRequest) (wire.KubeReply, error) {
			asked.Add(1)
			if r.Path != "/api/v1/nodes/edge-1" {
				t.Errorf("asked for %s", r.Path)
			}
			tunnel := `,{"type":"` + names.AddressTunnel + `","address":"` + wire.TunnelAddress("edge-1").String() + `"}`
			if !named.Load() {
				tunnel = ""
			}
			body := `{"status":{"addresses":[{"type":"Hostname","address":"` + hostname.Load().(string) + `"}` + tunnel + `]}}`
			return wire.KubeReply{Code: http.StatusOK, Body: []byte(body)}, nil
		}, link, zaptest.NewLogger(t))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- resolver.Start(ctx) }()
		expect := func(wantAsked int64, want ...string) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(want, resolver.List()); diff != "" || asked.Load() != wantAsked {
				t.Errorf("asked %d times, want %d; names (-want +got):\n%s", asked.Load(), wantAsked, diff)
			}
		}
		wait := func(d time.Duration) { <-time.After(d) }
		expect(0) // no link
		link.SetUp(true)
		expect(1) // the cloud has not named the Node yet
		named.Store(true)
		wait(time.Second)
		expect(2, "edge-1", wire.TunnelAddress("edge-1").String())
		hostname.Store("cloudcore")
		wait(5 * time.Minute)
		expect(3, "edge-1", wire.TunnelAddress("edge-1").String(), "cloudcore")
		link.SetUp(false)
		wait(time.Hour)
		expect(3, "edge-1", wire.TunnelAddress("edge-1").String(), "cloudcore")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

package localapi_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/frond-edge/frond/leaf/localapi"
)

// TestPodServer_RefusesRemotePeers: a peer on another machine does not get a handshake; a peer of unknown origin is served.
func TestPodServer_RefusesRemotePeers(t *testing.T) {
	for name, tt := range map[string]struct {
		outside bool
		fault   error
		served  bool
	}{
		"outside": {true, nil, false}, "of the machine": {false, nil, true}, "not known": {true, errors.New("no routes"), true},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan netip.Addr, 64) // more than there are connections
			s := newPodGateway(t, func(c *localapi.Config) {
				c.Pods.IsRemotePeer = func(peer netip.Addr) (bool, error) {
					asked <- peer
					return tt.outside, tt.fault
				}
			})
			_, err := clientFor(t, s.configFor(s.issuer.Token(podClaims()))).Discovery().RESTClient().Get().AbsPath("/livez").MaxRetries(0).DoRaw(t.Context())
			if (err == nil) != tt.served {
				t.Errorf("a good token: %v", err)
			}
			select {
			case peer := <-asked:
				if peer != netip.MustParseAddr("127.0.0.1") {
					t.Errorf("asked about %s", peer)
				}
			default:
				t.Error("nobody was asked")
			}
		})
	}
}

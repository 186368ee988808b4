package hostaddr_test

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/frond-edge/frond/edged/hostaddr"
)

// inNamespace gives the test a network namespace of its own.
func inNamespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it changes addresses in a network namespace")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test, and its namespace with it
	own, err := netns.New()
	if err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	t.Cleanup(func() { _ = own.Close() })
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
}

func TestClaim(t *testing.T) {
	inNamespace(t)
	for _, text := range []string{"10.96.0.1", "169.254.64.1"} {
		address := netip.MustParseAddr(text)
		if owned, err := hostaddr.Owned(address); err != nil || owned {
			t.Fatalf("%s before: %v, %v", text, owned, err)
		}
		for range 2 {
			if err := hostaddr.Claim(t.Context(), address); err != nil {
				t.Fatalf("claim %s: %v", text, err)
			}
		}
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", netip.AddrPortFrom(address, 0).String())
		if err != nil {
			t.Fatalf("listen on %s: %v", text, err)
		}
		_ = listener.Close()
		for range 2 {
			if err := hostaddr.Release(t.Context(), address); err != nil {
				t.Fatalf("release %s: %v", text, err)
			}
		}
		if owned, err := hostaddr.Owned(address); err != nil || owned {
			t.Fatalf("%s after: %v, %v", text, owned, err)
		}
	}
}

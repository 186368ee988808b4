package uplink_test

import (
	"context"
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/edged/uplink"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

// machine is a network namespace of the test's own.
type machine struct {
	*testing.T
	space  netns.NsHandle
	handle *netlink.Handle
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a network namespace")
	}
	runtime.LockOSThread()
	home, err := netns.Get()
	kit.Must(t, err)
	space, err := netns.New()
	if err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	kit.Must(t, netns.Set(home))
	kit.Must(t, home.Close())
	runtime.UnlockOSThread()
	t.Cleanup(func() { _ = space.Close() })
	handle, err := netlink.NewHandleAt(space)
	kit.Must(t, err)
	t.Cleanup(handle.Close)
	return &machine{T: t, space: space, handle: handle}
}

// addInterface adds an interface with a carrier and an address.
func (m *machine) addInterface(name, address string) netlink.Link {
	m.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	peer := name + "-peer"
	veth := netlink.NewVeth(attrs)
	veth.PeerName = peer
	kit.Must(m, m.handle.LinkAdd(veth))
	far, err := m.handle.LinkByName(peer)
	kit.Must(m, err)
	kit.Must(m, m.handle.LinkSetUp(far)) // without it the interface has no carrier
	link, err := m.handle.LinkByName(name)
	kit.Must(m, err)
	m.addAddress(link, address)
	kit.Must(m, m.handle.LinkSetUp(link))
	return link
}

func (m *machine) addAddress(link netlink.Link, text string) {
	m.Helper()
	address, err := netlink.ParseAddr(text)
	kit.Must(m, err)
	kit.Must(m, m.handle.AddrAdd(link, address))
}

func (m *machine) addDefaultRoute(link netlink.Link, gateway string) {
	m.Helper()
	kit.Must(m, m.handle.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gateway)}))
}

func TestWatcher_DialsWhenTheNetworkComesBack(t *testing.T) {
	m := newMachine(t)
	dialled := make(chan struct{}, 100) // more than there are changes
	watcher := uplink.NewAt(m.space, func() bool { return false }, func() { dialled <- struct{}{} }, zaptest.NewLogger(t))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- watcher.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	kit.Receive(t, "the first look", watcher.Ready())
	// A pod's network is no way to other networks; the card that comes next is.
	m.addInterface("cni0", "10.244.1.1/24")
	card := m.addInterface("wwan0", "192.0.2.2/24")
	m.addDefaultRoute(card, "192.0.2.1")
	kit.Receive(t, "the dial over the new card", dialled)
	m.addAddress(card, "192.0.2.3/24")
	kit.Receive(t, "the dial with another address", dialled)
	kit.Must(t, m.handle.LinkSetDown(card)) // no dial: there is no way
	kit.Must(t, m.handle.LinkSetUp(card))
	m.addDefaultRoute(card, "192.0.2.9")
	kit.Receive(t, "the dial through another gateway", dialled)
}

// Only what leads to other networks counts: no pod's network, no interface that is down, has no carrier or no address of its own.
func TestDescribeUplinks(t *testing.T) {
	m := newMachine(t)
	await := func(when, want string) { // the kernel sets the carrier after the answer to a command
		t.Helper()
		kit.Eventually(t, when, func() bool {
			got, err := uplink.DescribeUplinks(m.handle)
			return err == nil && got == want
		})
	}
	await("no network", "")
	pods := m.addInterface("cni0", "10.244.1.1/24")
	kit.Eventually(t, "the pods' interface has a carrier", func() bool {
		link, err := m.handle.LinkByIndex(pods.Attrs().Index)
		return err == nil && link.Attrs().RawFlags&unix.IFF_RUNNING != 0
	})
	await("a pod's network", "")
	card := m.addInterface("wwan0", "192.0.2.2/24")
	m.addDefaultRoute(card, "192.0.2.1")
	const uplinks = "wwan0 192.0.2.2 via 192.0.2.1"
	await("a card", uplinks)
	peer, err := m.handle.LinkByName("wwan0-peer")
	kit.Must(t, err)
	kit.Must(t, m.handle.LinkSetDown(peer))
	await("the carrier is lost", "")
	kit.Must(t, m.handle.LinkSetUp(peer))
	await("the carrier is back", uplinks)
	kit.Must(t, m.handle.LinkSetDown(card))
	await("the card is down", "")
}

func TestShouldDial(t *testing.T) {
	for name, tt := range map[string]struct {
		before, now string
		linked      bool
		want        bool
	}{
		"a new way":             {"", "wwan0", false, true},
		"another way":           {"eth0", "wwan0", false, true},
		"the same way":          {"eth0", "eth0", false, false},
		"no way":                {"eth0", "", false, false},
		"a new way beside ours": {"eth0", "eth0; wwan0", true, false},
	} {
		if got := uplink.ShouldDial(tt.before, tt.now, tt.linked); got != tt.want {
			t.Errorf("%s: dial %t", name, got)
		}
	}
}

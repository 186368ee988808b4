package wan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	bridge = "br0"
	// cutBridge is a second bridge that is always down: a port moved to it keeps its carrier and loses every packet.
	cutBridge = "cut0"
	// bridgeMAC is fixed, because a bridge takes a new address from its ports when one of them leaves, and every other
	// gateway would be cut for the seconds until it notices.
	bridgeMAC = "02:f0:00:00:00:fe"
	// uplink is the name of a gateway's interface towards the wan.
	uplink = "wan0"
	// Gateway is the address of the wan for gateways; the Forwarder listens there.
	Gateway = "10.200.0.254"
	// MaxEdges is the number of gateways that fit into the wan's /24 beside the Gateway.
	MaxEdges = 250
	netnsDir = "/run/netns"
)

// State is the state of a gateway's link.
type State string

// The states of a link. Down is loud: the gateway loses its carrier. Unknown: there is no such link now.
const (
	Up      State = "up"
	Cut     State = "cut"
	Down    State = "down"
	Unknown State = "unknown"
)

// Network manages the namespaces of one development cluster. Calls must not run at the same time.
type Network struct {
	// Prefix starts the name of each namespace and distinguishes clusters.
	Prefix string
}

// Wan is the name of the namespace in the middle.
func (n Network) Wan() string { return n.Prefix + "-wan" }

// Namespace is the name of a gateway's network namespace.
func (n Network) Namespace(edge string) string { return n.Prefix + "-" + edge }

// Path is the path of the kernel's handle of a gateway's network namespace.
func (n Network) Path(edge string) string { return filepath.Join(netnsDir, n.Namespace(edge)) }

// Address is the address of gateway number i, counted from 1.
func Address(i int) string { return fmt.Sprintf("10.200.0.%d", i) }

// bridgePort is the wan's end of a gateway's link. Interface names hold 15 bytes at most.
func bridgePort(edge string) string { return "f-" + edge }

// Up creates the missing namespaces. edges are in order; the first has number 1.
func (n Network) Up(ctx context.Context, edges []string) error {
	if len(edges) > MaxEdges {
		return fmt.Errorf("%d gateways: the wan has room for %d", len(edges), MaxEdges)
	}
	if !namespaceExists(n.Wan()) {
		if err := n.addWan(ctx); err != nil {
			return err
		}
	}
	for i, edge := range edges {
		if n.Intact(ctx, edge) {
			continue
		}
		if err := n.addEdge(ctx, edge, Address(i+1)); err != nil {
			return err
		}
	}
	return nil
}

func (n Network) addWan(ctx context.Context) error {
	w := n.Wan()
	err := runIPLines(ctx,
		"netns add "+w,
		"-n "+w+" link set lo up",
		"-n "+w+" link add "+bridge+" address "+bridgeMAC+" type bridge",
		"-n "+w+" link add "+cutBridge+" type bridge",
		"-n "+w+" addr add "+Gateway+"/24 dev "+bridge,
		"-n "+w+" link set "+bridge+" up",
	)
	if err != nil {
		return errors.Join(err, n.removeNamespace(context.WithoutCancel(ctx), w)) // a half-made wan must not count as one
	}
	return nil
}

func (n Network) addEdge(ctx context.Context, edge, address string) error {
	w, e := n.Wan(), n.Namespace(edge)
	if err := n.removeNamespace(ctx, e); err != nil {
		return err
	}
	err := runIPLines(ctx,
		"netns add "+e,
		"-n "+e+" link set lo up",
		"-n "+w+" link add "+bridgePort(edge)+" type veth peer name "+uplink+" netns "+e,
		"-n "+e+" addr add "+address+"/24 dev "+uplink,
		"-n "+e+" link set "+uplink+" up",
		"-n "+e+" route add default via "+Gateway,
		"-n "+w+" link set "+bridgePort(edge)+" up",
	)
	if err == nil {
		err = n.Heal(ctx, edge)
	}
	if err != nil {
		return errors.Join(err, n.removeNamespace(context.WithoutCancel(ctx), e))
	}
	return nil
}

// Renew gives a gateway a new namespace and link, as after a reboot; edges are all gateways in order. No process may run in the
// old namespace.
func (n Network) Renew(ctx context.Context, edge string, edges []string) error {
	if err := n.removeNamespace(ctx, n.Namespace(edge)); err != nil {
		return err
	}
	// The wan's end vanishes a moment after the namespace that held the other end.
	if err := runIP(ctx, "-n "+n.Wan()+" link del "+bridgePort(edge)); err != nil && runIP(ctx, "-n "+n.Wan()+" link show "+bridgePort(edge)) == nil {
		return err
	}
	return n.Up(ctx, edges)
}

// WanExists reports whether the central namespace exists; without it no gateway is Intact.
func (n Network) WanExists() bool { return namespaceExists(n.Wan()) }

// Intact reports whether a gateway's namespace and both ends of its link exist. If not, Up makes new ones, and processes
// in the old namespace have lost their network permanently.
func (n Network) Intact(ctx context.Context, edge string) bool {
	return namespaceExists(n.Namespace(edge)) &&
		runIP(ctx, "-n "+n.Namespace(edge)+" link show "+uplink) == nil &&
		runIP(ctx, "-n "+n.Wan()+" link show "+bridgePort(edge)) == nil
}

// Down removes every namespace of this cluster. No process may run inside; a remaining one keeps its namespace
// alive without a name.
func (n Network) Down(ctx context.Context) error {
	names, err := filepath.Glob(filepath.Join(netnsDir, n.Prefix+"-*"))
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, n.removeNamespace(ctx, filepath.Base(name)))
	}
	return errors.Join(errs...)
}

func (n Network) removeNamespace(ctx context.Context, name string) error {
	if !namespaceExists(name) {
		return nil
	}
	return runIP(ctx, "netns del "+name)
}

// Cut drops every packet of a gateway, in both directions. With loud the gateway also loses its carrier.
func (n Network) Cut(ctx context.Context, edge string, loud bool) error {
	if loud {
		return runIP(ctx, "-n "+n.Wan()+" link set "+bridgePort(edge)+" down")
	}
	return runIP(ctx, "-n "+n.Wan()+" link set "+bridgePort(edge)+" master "+cutBridge)
}

// Heal undoes Cut. The port is isolated: gateways do not reach each other, only the wan.
func (n Network) Heal(ctx context.Context, edge string) error {
	return runIPLines(ctx,
		"-n "+n.Wan()+" link set "+bridgePort(edge)+" master "+bridge+" up",
		"-n "+n.Wan()+" link set "+bridgePort(edge)+" type bridge_slave isolated on",
	)
}

// Route makes the wan forward packets to these subnets, at the addresses of their gateways. Ports stay isolated, so all traffic
// passes the wan, which also answers ARP for the gateways' addresses, and a cut gateway is cut from the others as well. By default
// the kernel delays each such ARP answer for a random time of up to 0.8 s (proxy_delay).
func (n Network) Route(ctx context.Context, gateways map[string]string) error {
	for setting, value := range map[string]string{
		"ip_forward": "1", "conf/" + bridge + "/proxy_arp_pvlan": "1", "neigh/" + bridge + "/proxy_delay": "0",
		"conf/all/send_redirects": "0", "conf/" + bridge + "/send_redirects": "0",
	} {
		out, err := exec.CommandContext(ctx, "ip", "netns", "exec", n.Wan(), "sh", "-c", `echo "$1" > "$0"`, "/proc/sys/net/ipv4/"+setting, value).CombinedOutput()
		if err != nil {
			return fmt.Errorf("set %s in %s: %w: %s", setting, n.Wan(), err, bytes.TrimSpace(out))
		}
	}
	for subnet, gateway := range gateways {
		if err := runIP(ctx, "-n "+n.Wan()+" route replace "+subnet+" via "+gateway+" dev "+bridge); err != nil {
			return err
		}
	}
	return nil
}

// State reads the state of a gateway's link from the kernel.
func (n Network) State(ctx context.Context, edge string) State {
	out, err := exec.CommandContext(ctx, "ip", "-n", n.Wan(), "-o", "link", "show", bridgePort(edge)).Output()
	switch {
	case err != nil:
		return Unknown
	case bytes.Contains(out, []byte(" master "+cutBridge+" ")):
		return Cut
	case !bytes.Contains(out, []byte(",UP,")) && !bytes.Contains(out, []byte(",UP>")):
		return Down
	default:
		return Up
	}
}

func namespaceExists(namespace string) bool {
	_, err := os.Stat(filepath.Join(netnsDir, namespace))
	return !errors.Is(err, fs.ErrNotExist)
}

func runIPLines(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		if err := runIP(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

// runIP runs the ip command with the words of line.
func runIP(ctx context.Context, line string) error {
	out, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", line, err, bytes.TrimSpace(out))
	}
	return nil
}

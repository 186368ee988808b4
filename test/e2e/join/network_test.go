package join_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The addresses of the cloud. They exist only in the test's namespaces.
const (
	frontAddress    = "10.201.0.254" // address of the hub, and of the proxy, for gateways
	impostorAddress = "10.201.0.253" // of the impostor in the hub's place
	gatewayAddress  = "192.168.77.2" // of each gateway, behind a router of its own
)

// network is a cloud whose pods are on one bridge, and gateways that are each behind a router.
type network struct {
	t      *testing.T
	prefix string
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{t: t, prefix: fmt.Sprintf("fj%d", os.Getpid())}
	cloud := n.addNamespace("cloud")
	n.runIP(
		"-n "+cloud+" link add br0 type bridge",
		"-n "+cloud+" addr add "+frontAddress+"/24 dev br0",
		"-n "+cloud+" addr add "+impostorAddress+"/24 dev br0",
		"-n "+cloud+" link set br0 up",
	)
	return n
}

// namespaceName is that of a namespace.
func (n *network) namespaceName(part string) string { return n.prefix + "-" + part }

// addNamespace creates a namespace that is removed with the test.
func (n *network) addNamespace(part string) string {
	n.t.Helper()
	name := n.namespaceName(part)
	n.runIP("netns add " + name)
	n.t.Cleanup(func() { n.runIP("netns del " + name) })
	n.runIP("-n " + name + " link set lo up")
	return name
}

// addPodNamespace gives a namespace an address in the cloud.
func (n *network) addPodNamespace(part, address string) {
	n.t.Helper()
	n.addNamespace(part)
	n.addVeth(part, "eth0", address)
}

func (n *network) addVeth(part, device, address string) {
	n.t.Helper()
	cloud, name := n.namespaceName("cloud"), n.namespaceName(part)
	n.runIP(
		"-n "+cloud+" link add p-"+part+" type veth peer name "+device+" netns "+name,
		"-n "+cloud+" link set p-"+part+" master br0 up",
		"-n "+name+" addr add "+address+"/24 dev "+device,
		"-n "+name+" link set "+device+" up",
	)
}

// addGateway creates a namespace behind a router. The router forwards only connections to one port of the front.
func (n *network) addGateway(part, outside string, port int) {
	n.t.Helper()
	router := part + "-r"
	n.addNamespace(router)
	n.addNamespace(part)
	n.addVeth(router, "out", outside)
	n.runIP(
		"-n "+n.namespaceName(router)+" link add in type veth peer name wan0 netns "+n.namespaceName(part),
		"-n "+n.namespaceName(router)+" addr add 192.168.77.1/24 dev in",
		"-n "+n.namespaceName(router)+" link set in up",
		"-n "+n.namespaceName(part)+" addr add "+gatewayAddress+"/24 dev wan0",
		"-n "+n.namespaceName(part)+" link set wan0 up",
		"-n "+n.namespaceName(part)+" route add default via 192.168.77.1",
	)
	n.runInside(router, "", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
	n.runInside(router, fmt.Sprintf(`
table ip hide {
	chain after { type nat hook postrouting priority 100; oifname "out" masquerade; }
	chain through {
		type filter hook forward priority 0; policy drop;
		ct state established,related accept
		iifname "in" ip daddr %s tcp dport %d accept
	}
}`, frontAddress, port), "nft", "-f", "-")
	n.runInside(part, fmt.Sprintf(`
table inet only {
	chain out {
		type filter hook output priority 0; policy drop;
		oifname "lo" accept
		ct state established,related accept
		ip daddr %s tcp dport %d accept
	}
	chain in {
		type filter hook input priority 0; policy drop;
		iifname "lo" accept
		ct state established,related accept
	}
}`, frontAddress, port), "nft", "-f", "-")
}

// runInside runs a command in a namespace.
func (n *network) runInside(part, stdin string, args ...string) {
	n.t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=/run/netns/" + n.namespaceName(part), "--"}, args...)...) //nolint:noctx // at once
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("%v in %s: %v: %s", args, part, err, out)
	}
}

func (n *network) runIP(lines ...string) {
	n.t.Helper()
	for _, line := range lines {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil { //nolint:noctx // at once, also when the test is over
			n.t.Errorf("ip %s: %v: %s", line, err, out)
		}
	}
}

package join_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The addresses of the cloud. Namespaces keep them to the test.
const (
	front     = "10.201.0.254" // where gateways find the hub, and the proxy
	elsewhere = "10.201.0.253" // of who answers in the hub's place
	inner     = "192.168.77.2" // of each gateway, behind a router of its own
)

// network is a cloud whose pods are on one bridge, and gateways that are each behind a router.
type network struct {
	t      *testing.T
	prefix string
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{t: t, prefix: fmt.Sprintf("fj%d", os.Getpid())}
	cloud := n.add("cloud")
	n.ip(
		"-n "+cloud+" link add br0 type bridge",
		"-n "+cloud+" addr add "+front+"/24 dev br0",
		"-n "+cloud+" addr add "+elsewhere+"/24 dev br0",
		"-n "+cloud+" link set br0 up",
	)
	return n
}

// name is that of a namespace.
func (n *network) name(part string) string { return n.prefix + "-" + part }

// add makes a namespace that goes with the test.
func (n *network) add(part string) string {
	n.t.Helper()
	name := n.name(part)
	n.ip("netns add " + name)
	n.t.Cleanup(func() { n.ip("netns del " + name) })
	n.ip("-n " + name + " link set lo up")
	return name
}

// pod gives a namespace an address in the cloud.
func (n *network) pod(part, address string) {
	n.t.Helper()
	n.add(part)
	n.plug(part, "eth0", address)
}

func (n *network) plug(part, device, address string) {
	n.t.Helper()
	cloud, name := n.name("cloud"), n.name(part)
	n.ip(
		"-n "+cloud+" link add p-"+part+" type veth peer name "+device+" netns "+name,
		"-n "+cloud+" link set p-"+part+" master br0 up",
		"-n "+name+" addr add "+address+"/24 dev "+device,
		"-n "+name+" link set "+device+" up",
	)
}

// gateway makes a namespace behind a router. Out of either goes what is for one port of the front, and nothing else.
func (n *network) gateway(part, outside string, port int) {
	n.t.Helper()
	router := part + "-r"
	n.add(router)
	n.add(part)
	n.plug(router, "out", outside)
	n.ip(
		"-n "+n.name(router)+" link add in type veth peer name wan0 netns "+n.name(part),
		"-n "+n.name(router)+" addr add 192.168.77.1/24 dev in",
		"-n "+n.name(router)+" link set in up",
		"-n "+n.name(part)+" addr add "+inner+"/24 dev wan0",
		"-n "+n.name(part)+" link set wan0 up",
		"-n "+n.name(part)+" route add default via 192.168.77.1",
	)
	n.within(router, "", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
	n.within(router, fmt.Sprintf(`
table ip hide {
	chain after { type nat hook postrouting priority 100; oifname "out" masquerade; }
	chain through {
		type filter hook forward priority 0; policy drop;
		ct state established,related accept
		iifname "in" ip daddr %s tcp dport %d accept
	}
}`, front, port), "nft", "-f", "-")
	n.within(part, fmt.Sprintf(`
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
}`, front, port), "nft", "-f", "-")
}

// within runs a command in a namespace.
func (n *network) within(part, stdin string, args ...string) {
	n.t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=/run/netns/" + n.name(part), "--"}, args...)...) //nolint:noctx // at once
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("%v in %s: %v: %s", args, part, err, out)
	}
}

func (n *network) ip(lines ...string) {
	n.t.Helper()
	for _, line := range lines {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil { //nolint:noctx // at once, also when the test is over
			n.t.Errorf("ip %s: %v: %s", line, err, out)
		}
	}
}

package join_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/test/kit"
)

// hollowFlag is added to the printed command for a gateway without containers.
const hollowFlag = " --runtime-endpoint hollow"

// joinResult and the others are the JSON outputs of commands.
type (
	joinResult struct {
		Node, Key, Cloud string
		Already, Started bool
	}
	resetResult struct {
		Node    string
		Already bool
		Removed []string
		Cloud   []string
	}
	tokenResult struct {
		ID, State, Token, JoinCommand, Node string
		Used                                []string
	}
	nodeEntry struct{ Node, State, Key string }
)

// throughTheLeafPort runs a gateway's life cycle: join, join again, a reboot, a reset, join again, and a restart.
func (c *bareCluster) throughTheLeafPort(t *testing.T, d hubPorts) {
	t.Helper()
	const node = "pump-7"
	c.addGateway(node, "10.201.0.101", 7422)
	m := c.newMachine(t, node)
	c.expectUnreachable(t, node, frontAddress+":443", frontAddress+":3128", frontAddress+":22", "10.201.0.1:7422")
	clean, n := m.fileSums(t), d.leaf.callCount()
	command := strings.TrimSpace(c.runFrond(t, "token", "create", "--node", node, "--print-join-command"))
	secret := strings.Fields(command)[4]

	first := m.runShell(t, command+hollowFlag)
	if first.code != 0 || !strings.Contains(first.stderr, node+" is a gateway") {
		t.Fatalf("%s: exit %d, %s%s", command, first.code, first.out, first.stderr)
	}
	before := c.awaitJoined(t, node)
	if spec, ok := before["spec"].(corev1.NodeSpec); !ok || !slices.Contains(spec.Taints, corev1.Taint{Key: "node-role.kubernetes.io/edge", Effect: corev1.TaintEffectNoSchedule}) {
		t.Errorf("frond init --taint-gateways, and the Node is %+v", before["spec"])
	}
	ours, files := m.leftFiles(t, clean), m.fileSums(t)
	if want := []string{"etc/frond/edgecore.yaml", "etc/systemd/system/edgecore.service", "etc/systemd/system/multi-user.target.wants/edgecore.service"}; !slices.Equal(ours, want) {
		t.Errorf("it made %q, want %q", ours, want)
	}
	for _, call := range d.leaf.callsSince(n) {
		if host, _, _ := net.SplitHostPort(call.from); host != "10.201.0.101" || checkTokenAbsent(call.bytesRead(), secret) != nil {
			t.Errorf("from %s was said %v", call.from, checkTokenAbsent(call.bytesRead(), secret))
		}
	}

	second := m.runShell(t, command+hollowFlag+" -o json")
	if again := decodeJSON[joinResult](t, second.out); second.code != 0 || !again.Already || again.Node != node || !strings.Contains(second.stderr, "already joined as "+node) {
		t.Errorf("a second time: exit %d, %+v, %s", second.code, again, second.stderr)
	}
	if diff := cmp.Diff(files, m.fileSums(t)); diff != "" {
		t.Errorf("a second time changes files (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(before, c.awaitJoined(t, node)); diff != "" {
		t.Errorf("a second time changes the cloud (-before +after):\n%s", diff)
	}

	t.Log("the second time is over: power off")
	m.stop(t)
	m.boot(t)
	t.Log("it has booted")
	eventually(t, "edgecore runs after a reboot", func(ctx context.Context) error {
		return c.expectOK(ctx, node, "http://127.0.0.1:10281/readyz", nil)
	})
	t.Log("edgecore is ready again")
	if out := m.runShell(t, "systemctl stop edgecore && "+command+hollowFlag); out.code != 0 || !strings.Contains(out.stderr, node+" is a gateway") {
		t.Errorf("what was stopped is started: exit %d, %s", out.code, out.stderr)
	}

	t.Log("it is stopped and joined a third time")
	c.resetGateway(t, m, node, clean)
	c.joinAgain(t, m, node)
}

// joinAgain joins a gateway whose Node was just deleted: the cloud still holds its state, and its Node must be created all the same.
func (c *bareCluster) joinAgain(t *testing.T, m *machine, node string) {
	t.Helper()
	command := strings.TrimSpace(c.runFrond(t, "token", "create", "--node", node, "--print-join-command"))
	if out := m.runShell(t, command+hollowFlag); out.code != 0 {
		t.Fatalf("%s: exit %d, %s%s", command, out.code, out.out, out.stderr)
	}
	c.awaitJoined(t, node)
}

// resetGateway resets a gateway and checks the remains, here and in the cloud.
func (c *bareCluster) resetGateway(t *testing.T, m *machine, node string, clean map[string]string) {
	t.Helper()
	if running := m.processLines(t); !strings.Contains(running, "edgecore") {
		t.Errorf("edgecore does not run:\n%s", running)
	}
	gone := m.runShell(t, "frond reset --yes -o json")
	result := decodeJSON[resetResult](t, gone.out)
	if gone.code != 0 || result.Node != node || !slices.Contains(result.Cloud, "frond node revoke "+node) || !strings.Contains(gone.stderr, "kubectl delete node "+node) {
		t.Errorf("frond reset: exit %d, %+v, %s", gone.code, result, gone.stderr)
	}
	if left := m.leftFiles(t, clean); len(left) > 0 {
		t.Errorf("frond reset leaves %v", left)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "lib", "frond")); err == nil {
		t.Error("frond reset leaves /var/lib/frond")
	}
	if running := m.processLines(t); strings.Contains(running, "edgecore") {
		t.Errorf("frond reset leaves processes:\n%s", running)
	}
	if out := m.runShell(t, "systemctl cat edgecore.service"); out.code == 0 {
		t.Errorf("systemd still knows %s", out.out)
	}
	again := m.runShell(t, "frond reset --yes -o json")
	if result := decodeJSON[resetResult](t, again.out); again.code != 0 || !result.Already {
		t.Errorf("frond reset once more: exit %d, %+v, %s", again.code, result, again.stderr)
	}
	if _, err := c.kube.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{}); err != nil {
		t.Errorf("frond reset reaches the cloud: %v", err)
	}
	t.Log("it is reset")
	slices.Reverse(result.Cloud) // a deleted Node has no link to wait for
	for _, line := range result.Cloud {
		words := strings.Fields(line)
		if words[0] == "frond" {
			c.runFrond(t, append(words[1:], "--yes", "-o", "json")...)
		} else {
			c.runKubectl(t, words[1:]...)
		}
	}
	t.Log("it is revoked, and its Node deleted")
	nodes := decodeJSON[[]nodeEntry](t, c.runFrond(t, "node", "list", "-o", "json"))
	if i := slices.IndexFunc(nodes, func(n nodeEntry) bool { return n.Node == node }); i < 0 || nodes[i].State != "revoked" {
		t.Errorf("revoked in the cloud, and it lists %+v", nodes)
	}
}

// throughAProxy joins where the only route is an HTTP proxy that allows port 443 only.
func (c *bareCluster) throughAProxy(t *testing.T, d hubPorts) {
	t.Helper()
	const node = "pump-8"
	c.addGateway(node, "10.201.0.102", 3128)
	m := c.newMachine(t, node)
	c.expectUnreachable(t, node, frontAddress+":443", frontAddress+":7422")
	made := decodeJSON[tokenResult](t, c.runFrond(t, "token", "create", "-o", "json"))
	words := strings.Fields(made.JoinCommand)
	words[2] = "wss://hub.example.com"
	first := m.runShell(t, "HTTPS_PROXY=http://"+frontAddress+":3128 "+strings.Join(words, " ")+hollowFlag+" -o json")
	if result := decodeJSON[joinResult](t, first.out); first.code != 0 || !result.Started || result.Already || result.Node != node {
		t.Fatalf("exit %d, %+v, %s", first.code, result, first.stderr)
	}
	c.awaitJoined(t, node)
	asked := map[string]bool{}
	for _, call := range d.proxy.callsSince(0) {
		line, rest, _ := bytes.Cut(call.bytesRead(), []byte("\n"))
		asked[string(line)] = true
		if err := checkTokenAbsent(rest, made.Token); err != nil {
			t.Errorf("through the proxy: %v", err)
		}
	}
	if !asked["CONNECT hub.example.com:443"] || d.websocket.callCount() == 0 {
		t.Errorf("the proxy was asked for %v", asked)
	}
	tokens := decodeJSON[[]tokenResult](t, c.runFrond(t, "token", "list", "-o", "json"))
	id, _, _ := strings.Cut(made.Token, ".")
	if i := slices.IndexFunc(tokens, func(o tokenResult) bool { return o.ID == id }); i < 0 || tokens[i].State != "used up" || len(tokens[i].Used) != 1 {
		t.Errorf("tokens %+v", tokens)
	}
	if deleted := decodeJSON[[]string](t, c.runFrond(t, "token", "delete", id, "-o", "json")); len(deleted) != 1 {
		t.Errorf("token delete: %v", deleted)
	}
}

// wrongHash tries to join with a wrong CA hash, and with an impostor in the hub's place. Neither may receive the token.
func (c *bareCluster) wrongHash(t *testing.T, d hubPorts) {
	t.Helper()
	const node = "pump-9"
	c.addGateway(node, "10.201.0.103", 7422)
	m := c.newMachine(t, node)
	clean := m.fileSums(t)
	made := decodeJSON[tokenResult](t, c.runFrond(t, "token", "create", "-o", "json"))
	wrong := "sha256:" + strings.Repeat("0", 64)
	words := strings.Fields(made.JoinCommand)
	words[slices.Index(words, "--ca-hash")+1] = wrong
	command := strings.Join(words, " ") + hollowFlag
	for _, tt := range []struct {
		more string
		code int
	}{
		{"", 2}, // preflight finds it
		{" --ignore-preflight-errors=cloud --timeout 1m", 1},
	} {
		n := d.leaf.callCount()
		out := m.runShell(t, command+tt.more)
		if out.code != tt.code || !strings.Contains(out.stderr, "is not the hub you mean") || !strings.Contains(out.stderr, "Nothing was sent to it") {
			t.Errorf("%s: exit %d, %s", tt.more, out.code, out.stderr)
		}
		calls := d.leaf.callsSince(n)
		if len(calls) == 0 {
			t.Errorf("%s: the hub was not looked at", tt.more)
		}
		for _, call := range calls {
			if err := errors.Join(checkTokenAbsent(call.bytesRead(), made.Token), checkOnlyHello(call.bytesRead())); err != nil {
				t.Errorf("%s: on the wire: %v", tt.more, err)
			}
		}
	}
	c.serveImpostor(t, m, made)
	if left := m.leftFiles(t, clean); len(left) > 0 {
		t.Errorf("it leaves %v", left)
	}
	tokens := decodeJSON[[]tokenResult](t, c.runFrond(t, "token", "list", "-o", "json"))
	if i := slices.IndexFunc(tokens, func(o tokenResult) bool { return strings.HasPrefix(made.Token, o.ID) }); i < 0 || tokens[i].State != "valid" {
		t.Errorf("the token is used: %+v", tokens)
	}
}

// serveImpostor answers in the hub's place, with a certificate of another CA, and records the bytes received inside TLS.
func (c *bareCluster) serveImpostor(t *testing.T, m *machine, made tokenResult) {
	t.Helper()
	cert := selfSigned(t)
	heard := make(chan []byte, 100) // more than there are tries
	r := startRelay(t, c.namespaceName("cloud"), impostorAddress+":7422", func(ctx context.Context, conn net.Conn, call *relayCall) {
		inside := tls.Server(recordingConn{conn, call}, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}})
		_ = inside.SetDeadline(time.Now().Add(waitTimeout))
		shaken := inside.HandshakeContext(ctx)
		said, _ := io.ReadAll(io.LimitReader(inside, 1<<16)) // until the client has given up
		if shaken != nil {
			said = append(said, call.bytesRead()...) // nothing was sent inside TLS: check the raw bytes
		}
		heard <- said
	})
	// The name now leads to the impostor, through the same router and port.
	c.runInside(m.name+"-r", fmt.Sprintf("add rule ip hide through iifname \"in\" ip daddr %s tcp dport 7422 accept\n", impostorAddress), "nft", "-f", "-")
	c.runInside(m.name, fmt.Sprintf("add rule inet only out ip daddr %s tcp dport 7422 accept\n", impostorAddress), "nft", "-f", "-")
	if out := m.runShell(t, "sed -i s/"+frontAddress+"/"+impostorAddress+"/ /etc/hosts"); out.code != 0 {
		t.Fatal(out.stderr)
	}
	for _, more := range []string{"", " --ignore-preflight-errors=cloud --timeout 1m"} {
		n := r.callCount()
		out := m.runShell(t, made.JoinCommand+hollowFlag+more)
		if out.code == 0 || !strings.Contains(out.stderr, "something between here and the hub answers in its place") {
			t.Errorf("%s: exit %d, %s", more, out.code, out.stderr)
		}
		for range r.callsSince(n) {
			if said := <-heard; checkTokenAbsent(said, made.Token) != nil || !bytes.HasPrefix(said, []byte{22}) && len(said) > 0 {
				t.Errorf("%s: it heard %q", more, said)
			}
		}
		for _, call := range r.callsSince(n) {
			if err := errors.Join(checkTokenAbsent(call.bytesRead(), made.Token), checkOnlyHello(call.bytesRead())); err != nil {
				t.Errorf("%s: on the wire: %v", more, err)
			}
		}
	}
	if out := m.runShell(t, "sed -i s/"+impostorAddress+"/"+frontAddress+"/ /etc/hosts"); out.code != 0 {
		t.Fatal(out.stderr)
	}
}

// recordingConn records the bytes read from a connection.
type recordingConn struct {
	net.Conn
	to io.Writer
}

func (c recordingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	_, _ = c.to.Write(p[:n]) // it never fails
	return n, err
}

// checkTokenAbsent returns an error if the recorded bytes contain a part of the token.
func checkTokenAbsent(said []byte, token string) error {
	id, private, _ := strings.Cut(token, ".")
	for _, part := range []string{id, private, private[:8], private[8:]} {
		if bytes.Contains(said, []byte(part)) {
			return fmt.Errorf("%d bytes were said, and %q is in them", len(said), part)
		}
	}
	return nil
}

// checkOnlyHello returns an error if more was sent than a TLS hello and the alert that ends a handshake. The alert is encrypted: 2 bytes,
// the record type, and a tag of 16 bytes. A token has 23 bytes.
func checkOnlyHello(said []byte) error {
	const handshake, change, alert, sealed, mostSealed = 22, 20, 21, 23, 2 + 1 + 16
	kinds, lengths, err := tlsRecords(said)
	if err != nil {
		return err
	}
	for i, kind := range kinds {
		switch {
		case kind == handshake && i == 0, kind == change && lengths[i] == 1, kind == alert && lengths[i] == 2:
		case kind == sealed && lengths[i] <= mostSealed:
		default:
			return fmt.Errorf("records of the kinds %v with %v bytes", kinds, lengths)
		}
	}
	return nil
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	ca, err := mint.NewAuthority(x509.Certificate{
		Subject: pkix.Name{CommonName: "hub.example.com"}, DNSNames: []string{"hub.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	kit.Must(t, err)
	return tls.Certificate{Certificate: [][]byte{ca.Cert.Raw}, PrivateKey: ca.Key}
}

// expectUnreachable checks that a gateway reaches no other address.
func (c *bareCluster) expectUnreachable(t *testing.T, part string, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if conn, err := wan.Dial(ctx, c.namespaceName(part), address); err == nil {
			_ = conn.Close()
			t.Errorf("%s gets through to %s", part, address)
		}
		cancel()
	}
}

// awaitJoined waits until a gateway's Node is ready, and returns the stable fields of the Node and of its key.
func (c *bareCluster) awaitJoined(t *testing.T, name string) map[string]any {
	t.Helper()
	var node *corev1.Node
	eventually(t, name+" is ready", func(ctx context.Context) (err error) {
		if node, err = c.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", node.Status.Conditions)
	})
	nodes := decodeJSON[[]nodeEntry](t, c.runFrond(t, "node", "list", "-o", "json"))
	i := slices.IndexFunc(nodes, func(n nodeEntry) bool { return n.Node == name })
	if i < 0 || nodes[i].State != "valid" {
		t.Fatalf("frond node list: %+v", nodes)
	}
	return map[string]any{"uid": node.UID, "labels": node.Labels, "spec": node.Spec, "key": nodes[i].Key}
}

// leftFiles lists the new files on the machine's disk, outside of /var/lib/frond.
func (m *machine) leftFiles(t *testing.T, clean map[string]string) (names []string) {
	t.Helper()
	for name := range m.fileSums(t) {
		if _, was := clean[name]; !was && !strings.HasPrefix(name, "lib/frond/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

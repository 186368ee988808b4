package attacks_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// dialThroughEgress opens a connection through a cloudcore as kube-apiserver does, and returns the first bytes received, or the line of the
// refusal.
func dialThroughEgress(ctx context.Context, target string) (greeting, refused string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	egress, secret, err := shared.Egress()
	if err != nil {
		return "", "", err
	}
	at, err := url.Parse(egress)
	if err != nil {
		return "", "", err
	}
	conn, err := (&tls.Dialer{Config: secret}).DialContext(ctx, "tcp", at.Host)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
		return "", "", err
	}
	r := bufio.NewReader(conn)
	response, err := http.ReadResponse(r, nil)
	if err != nil {
		return "", "", err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", response.Status, nil
	}
	line, err := r.ReadString('\n')
	return line, "", err
}

// reportState reports a state of the stolen node's own object, repeatedly until Kubernetes has it.
func (th *attacker) reportState(t *testing.T, key wire.Key, uid string, object any, known func(ctx context.Context) bool) {
	t.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "Kubernetes has the thief's word on "+key.String(), func(ctx context.Context) string {
		th.publish(subject.Of(subject.Report, stolen, key), "", data,
			"Frond-Version: 1", "Frond-Op: apply", "Frond-UID: "+uid, "Frond-Store: thief", "Frond-Order: 1", "Frond-Time: "+time.Now().UTC().Format(time.RFC3339Nano))
		if said := th.flush(ctx); said != "" {
			return said
		}
		if !pollWithin(ctx, 5*time.Second, func() bool { return known(ctx) }) {
			return "it does not"
		}
		return ""
	})
}

// TestReport_ForeignAddressIsNotRouted reports an address of the victim's podCIDR, and one in the cloud, as addresses of the stolen gateway's
// pod and of the gateway itself. Connections to them must reach the same targets as before, not the attacker.
func TestReport_ForeignAddressIsNotRouted(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.3:0") // in the cloud: cloudcore dials it as it is
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			_, _ = io.WriteString(conn, "of the cloud\n")
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-served
	})
	pods := kube.CoreV1().Pods("default")
	other, err := kube.CoreV1().Nodes().Get(t.Context(), victim, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	network, err := netip.ParsePrefix(other.Spec.PodCIDR)
	if err != nil {
		t.Fatal(err)
	}
	victims := network.Addr().Next().String()
	own, err := pods.Get(t.Context(), "on-"+stolen, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node, err := kube.CoreV1().Nodes().Get(t.Context(), stolen, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	th.subscribe("tunnel."+stolen+".>", "")
	if said := th.flush(t.Context()); said != "" {
		t.Fatal(said)
	}
	asPod := func(addresses ...string) {
		t.Helper()
		forged := own.DeepCopy()
		forged.APIVersion, forged.Kind, forged.ManagedFields = "v1", "Pod", nil
		forged.Status.PodIP, forged.Status.PodIPs = addresses[0], nil
		for _, a := range addresses {
			forged.Status.PodIPs = append(forged.Status.PodIPs, corev1.PodIP{IP: a})
		}
		th.reportState(t, wire.Key{Resource: "pods", Namespace: "default", Name: own.Name}, string(own.UID), forged, func(ctx context.Context) bool {
			now, err := pods.Get(ctx, own.Name, metav1.GetOptions{})
			return err == nil && now.Status.PodIP == addresses[0]
		})
	}
	defer asPod(own.Status.PodIP) // before the link is closed
	host, _, _ := net.SplitHostPort(l.Addr().String())
	forged := node.DeepCopy()
	forged.APIVersion, forged.Kind, forged.ManagedFields = "v1", "Node", nil
	for _, address := range []string{victims, host} {
		forged.Status.Addresses = append(forged.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	th.reportState(t, wire.Key{Resource: "nodes", Name: stolen}, string(node.UID), forged, func(ctx context.Context) bool {
		now, err := kube.CoreV1().Nodes().Get(ctx, stolen, metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(now.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Address == host })
	})
	before := th.countOpens()

	asPod(victims)
	eventually(t, "the victim is asked for the address", func(ctx context.Context) string {
		// A hollow pod is not reachable, but the refusal comes from the victim.
		_, refused, err := dialThroughEgress(ctx, net.JoinHostPort(victims, "8080"))
		if err != nil || !strings.Contains(refused, "node "+victim+" refused "+victims+":8080: ") {
			return fmt.Sprintf("%q, %v", refused, err)
		}
		return ""
	})
	asPod(host)
	eventually(t, "the cloud's server answers", func(ctx context.Context) string {
		greeting, refused, err := dialThroughEgress(ctx, l.Addr().String())
		if err != nil || greeting != "of the cloud\n" {
			return fmt.Sprintf("%q, %q, %v", greeting, refused, err)
		}
		return ""
	})
	if n := th.countOpens() - before; n > 0 {
		t.Errorf("%d connections came to the thief", n)
	}
}

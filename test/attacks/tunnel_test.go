package attacks_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds of frames, as streams/tunnel has them.
const (
	kindData   = 1
	kindOpen   = 2
	kindAccept = 3
	kindRefuse = 4
	kindReset  = 5

	kindOpenAddress = 6

	flagFin = 1
	// maxFramePayload is the maximum payload of a frame. A test sends enough full frames to exceed the initial window of a stream.
	maxFramePayload = 16 << 10
)

// tunnelFrame is one message of a stream.
func tunnelFrame(kind, flags byte, offset, consumed uint64, payload []byte) []byte {
	b := []byte{0xF5, 1, kind, flags}
	b = binary.BigEndian.AppendUint64(b, offset)
	b = binary.BigEndian.AppendUint64(b, consumed)
	b = binary.BigEndian.AppendUint32(b, 1<<31)
	return append(b, payload...)
}

// kubeletClient returns a function that sends a request to a node's kubelet through the tunnel, as kube-apiserver does.
func kubeletClient(t *testing.T) func(ctx context.Context, node string) error {
	t.Helper()
	egress, secret, err := shared.Egress()
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{
		Proxy: func(*http.Request) (*url.URL, error) { return url.Parse(egress) }, TLSClientConfig: secret, DisableKeepAlives: true,
	}}
	ports := map[string]int32{}
	for _, name := range []string{victim, stolen} {
		node, err := kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ports[name] = node.Status.DaemonEndpoints.KubeletEndpoint.Port
	}
	return func(ctx context.Context, node string) error {
		ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://%s:%d/healthz", node, ports[node]), nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		if _ = response.Body.Close(); err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("answered %s", response.Status)
		}
		return err
	}
}

// awaitOpen waits until the cloud opens another stream to the attacker, and returns the subject to answer on.
func (th *attacker) awaitOpen(ctx context.Context, seen int) (back string, ok bool) {
	prefix := "tunnel." + th.node + "."
	ok = pollWithin(ctx, 10*time.Second, func() bool {
		n := 0
		for _, m := range th.received("") {
			if key, is := strings.CutPrefix(m.subject, prefix); is && len(m.data) > 2 && m.data[2] == kindOpen {
				if n++; n > seen {
					back = "tunnelup." + th.node + "." + key
					return true
				}
			}
		}
		return false
	})
	return back, ok
}

// countOpens counts the streams that the cloud has opened to the attacker.
func (th *attacker) countOpens() (n int) {
	for _, m := range th.received("") {
		if strings.HasPrefix(m.subject, "tunnel."+th.node+".") && len(m.data) > 2 && (m.data[2] == kindOpen || m.data[2] == kindOpenAddress) {
			n++
		}
	}
	return n
}

// hostileFrames are malicious answers of a gateway to the opening of a stream.
func hostileFrames() map[string]struct {
	code   string
	frames [][]byte
} {
	type trick = struct {
		code   string
		frames [][]byte
	}
	yes := tunnelFrame(kindAccept, 0, 0, 0, nil)
	overrun := [][]byte{yes}
	for i := range uint64(2048) {
		overrun = append(overrun, tunnelFrame(kindData, 0, i*maxFramePayload, 0, make([]byte, maxFramePayload)))
	}
	return map[string]trick{
		"says yes twice":        {"protocol", [][]byte{yes, yes}},
		"takes its yes back":    {"protocol", [][]byte{yes, tunnelFrame(kindRefuse, 0, 0, 0, []byte("port\x00no"))}},
		"opens one itself":      {"protocol", [][]byte{yes, tunnelFrame(kindOpen, 0, 0, 0, []byte{0x28, 0x0a})}},
		"leaves a gap":          {"lost", [][]byte{yes, tunnelFrame(kindData, 0, 3, 0, []byte("x"))}},
		"says all twice":        {"lost", [][]byte{yes, tunnelFrame(kindData, 0, 0, 0, []byte("x")), tunnelFrame(kindData, 0, 0, 0, []byte("x"))}},
		"goes on after its end": {"protocol", [][]byte{yes, tunnelFrame(kindData, flagFin, 0, 0, nil), tunnelFrame(kindData, 0, 0, 0, []byte("x"))}},
		"reads what is not":     {"protocol", [][]byte{yes, tunnelFrame(kindData, 0, 0, 1<<60, nil)}},
		"sends without end":     {"overrun", overrun},
		"sends a huge frame":    {"protocol", [][]byte{yes, tunnelFrame(kindData, 0, 0, 0, make([]byte, 1<<20))}},
		"speaks another tongue": {"protocol", [][]byte{yes, []byte(`{"kind":"Pod"}`)}},
		"resets with a lie":     {"other", [][]byte{yes, tunnelFrame(kindReset, 0, 0, 0, []byte("invented\x00\x1b[2J\n"+strings.Repeat("x", 9000)))}},
	}
}

// TestTunnel_HostileFramesCloseStream answers in place of the stolen gateway's kubelet.
func TestTunnel_HostileFramesCloseStream(t *testing.T) {
	ask := kubeletClient(t)
	for name, tt := range hostileFrames() {
		t.Run(name, func(t *testing.T) {
			th := stealCredentials(t, stolen).mustOpenLink(t, nil)
			th.subscribe("tunnel."+stolen+".>", "")
			if said := th.flush(t.Context()); said != "" {
				t.Fatal(said)
			}
			risen := counterDelta(t, "frond_tunnel_broken_total", "reason="+tt.code)
			eventually(t, "the stream breaks as "+tt.code, func(ctx context.Context) string {
				asked, seen := make(chan error, 1), th.countOpens()
				go func() { asked <- ask(ctx, stolen) }()
				back, ok := th.awaitOpen(ctx, seen)
				if ok {
					for _, f := range tt.frames {
						th.publish(back, "", f)
					}
				}
				if err := <-asked; err == nil {
					t.Fatal("a thief is taken for a kubelet")
				}
				if !pollWithin(ctx, 2*time.Second, func() bool { return risen() > 0 }) {
					return "it is not counted" // the hub may not have known of the link yet
				}
				return ""
			})
			awaitKubelet(t, ask)
		})
	}
}

// TestTunnel_ForeignStreamIsRefused: the attacker has the secret id of a stream to the victim, and opens streams of its own.
func TestTunnel_ForeignStreamIsRefused(t *testing.T) {
	ask, nc := kubeletClient(t), connectAdmin(t)
	ids := make(chan string, 1024)
	sub, err := nc.Subscribe("tunnel."+victim+".>", func(msg *nats.Msg) {
		select {
		case ids <- strings.TrimPrefix(msg.Subject, "tunnel."+victim+"."):
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection is the test's
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	foreign := counterDelta(t, "frond_tunnel_refused_total", "reason=foreign")
	end := make(chan struct{})
	injected, last := make(chan int, 1), make(chan string, 1)
	go func() {
		n := 0
		defer func() { injected <- n }()
		for {
			select {
			case <-end:
				return
			case id := <-ids:
				if n++; n == 1 {
					last <- id
				}
				for _, f := range [][]byte{tunnelFrame(kindAccept, 0, 0, 0, nil), tunnelFrame(kindReset, 0, 0, 0, []byte("reset\x00")), tunnelFrame(kindData, 0, 0, 0, []byte("evil"))} {
					th.publish("tunnelup."+stolen+"."+id, "", f)
				}
			}
		}
	}()
	eventually(t, "an answer for another is counted", func(context.Context) string {
		awaitKubelet(t, ask)
		if foreign() == 0 {
			return "it is not"
		}
		return ""
	})
	close(end)
	t.Logf("%d frames of the victim's streams were answered for it", <-injected)
	awaitLogged(t, "a node sent to another node's stream", stolen)

	// Endless opens of unknown and invalid streams, addressed to an existing replica.
	replica, _, _ := strings.Cut(<-last, ".")
	for code, id := range map[string]string{"unknown": "%022d", "garbage": "%d"} {
		refused := counterDelta(t, "frond_tunnel_refused_total", "reason="+code)
		for i := range 5000 {
			th.publish(fmt.Sprintf("tunnelup."+stolen+"."+replica+"."+id, i), "", tunnelFrame(kindOpen, 0, 0, 0, []byte{0x28, 0x0a}))
		}
		awaitCounter(t, code+" streams", refused, 100)
	}
	if said := th.flush(t.Context()); said != "" {
		t.Errorf("the link was closed: %s", said)
	}
	// It may not publish towards a gateway under its own name, nor towards the cloud under another's.
	risen := counterDelta(t, "frond_identity_offences_total", "reason=violation", "node="+stolen)
	for _, subject := range []string{"tunnel." + victim, "tunnel." + stolen, "tunnelup." + victim} {
		th := stealCredentials(t, stolen).mustOpenLink(t, nil)
		th.publish(subject+"."+replica+".BBBBBBBBBBBBBBBBBBBBBB", "", tunnelFrame(kindOpen, 0, 0, 0, []byte{0x28, 0x0a}))
		if said := th.flush(t.Context()); said == "" {
			t.Errorf("%s was taken", subject)
		}
	}
	awaitCounter(t, "a foreign stream", risen, 1)
	awaitKubelet(t, ask)
}

// awaitKubelet waits until the victim's kubelet answers: at once, unless the machine is busy.
func awaitKubelet(t *testing.T, ask func(ctx context.Context, node string) error) {
	t.Helper()
	eventually(t, "the victim's kubelet answers", func(ctx context.Context) string {
		if err := ask(ctx, victim); err != nil {
			t.Logf("asked again: %v", err)
			return err.Error()
		}
		return ""
	})
}

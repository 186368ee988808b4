package attacks_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// encodedCSR returns a request for a user's certificate, in base64.
func encodedCSR(t *testing.T, user string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: user, Organization: []string{"system:nodes", "system:masters"}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// sumMetric sums a metric over both cloudcores.
func sumMetric(ctx context.Context, name string, labels ...string) (sum float64) {
	for _, part := range []string{"cloudcore-1", "cloudcore-2"} {
		n, err := shared.Metric(ctx, part, name, labels...)
		if err == nil {
			sum += n
		}
	}
	return sum
}

// TestReport_ForeignNodeIsDropped sends reports about other nodes' objects, and malformed ones, on the stolen node's own subjects.
// Each is counted as dropped, refused or dead.
func TestReport_ForeignNodeIsDropped(t *testing.T) {
	p, err := kube.CoreV1().Pods("default").Get(t.Context(), "on-"+victim, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	key := func(resource, namespace, name string) string {
		return subject.Of(subject.Report, stolen, wire.Key{Resource: resource, Namespace: namespace, Name: name})
	}
	failed := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"on-%[1]s","namespace":"default","uid":"%[2]s","resourceVersion":"%[3]s"},
		"spec":{"nodeName":"%[1]s"},"status":{"phase":"Failed","reason":"Thief"}}`, victim, p.UID, p.ResourceVersion)
	ready := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":{"thief":"was-here"}},
		"status":{"conditions":[{"type":"Ready","status":"False"}],"addresses":[{"type":"InternalIP","address":"6.6.6.6"}]}}`, victim)
	forgeries := map[string]struct{ subject, op, uid, data, more string }{
		"another's pod fails":      {key("pods", "default", "on-"+victim), "apply", string(p.UID), failed, ""},
		"another's pod is gone":    {key("pods", "default", "on-"+victim), "delete", string(p.UID), failed, ""},
		"of a foreign UID":         {key("pods", "default", "on-"+victim), "apply", "0000", failed, ""},
		"another Node is not well": {key("nodes", "", victim), "apply", "", ready, ""},
		"another under its name":   {key("nodes", "", stolen), "apply", "", ready, ""},
		"a secret":                 {key("secrets", "default", "of-"+victim), "apply", "", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"of-edge-1","namespace":"default"}}`, ""},
		"null":                     {key("pods", "default", "null"), "apply", "1", "null", ""},
		"a list":                   {key("pods", "default", "list"), "apply", "1", "[]", ""},
		"nested":                   {key("pods", "default", "nested"), "apply", "1", nestedJSON(10_000), ""},
		"a bomb":                   {key("pods", "default", "bomb"), "apply", "1", string(zstdBomb(t)), "Content-Encoding: zstd"},
		"of the future":            {key("pods", "default", "future"), "apply", "1", "{}", "Frond-Version: 99"},
		"an unknown deed":          {key("pods", "default", "deed"), "explode", "1", "{}", ""},
	}
	names := []string{"frond_reports_dropped_total", "frond_dead_letters_total", "frond_garbage_dropped_total"}
	count := func(ctx context.Context) (sum float64) {
		for _, name := range names {
			sum += sumMetric(ctx, name)
		}
		return sum + sumMetric(ctx, "frond_reports_total", "result=refused")
	}
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	th.subscribe(th.inbox(), "")
	before := count(t.Context())
	checkUnharmed(t, func() {
		for name, f := range forgeries {
			headers := []string{
				"Frond-Version: 1", "Frond-Op: " + f.op, "Frond-UID: " + f.uid, "Frond-Store: thief", "Frond-Order: 1",
				"Frond-Time: " + time.Now().UTC().Format(time.RFC3339Nano),
			}
			if f.more != "" {
				headers = append(headers, f.more)
			}
			th.publish(f.subject, th.inbox(), []byte(f.data), headers...)
			if said := th.flush(t.Context()); said != "" {
				t.Fatalf("%s: %s", name, said)
			}
		}
		eventually(t, "each forgery is counted", func(ctx context.Context) string {
			// Reports of one object replace each other in the stream: three of the pod may become one.
			if n := count(ctx) - before; n < float64(len(forgeries)-2) {
				return fmt.Sprintf("%v of %d", n, len(forgeries))
			}
			return ""
		})
	})
}

package localapi_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/test/kit"
)

// serviceGateway is a gateway whose kubelet and kube-proxy read Services.
type serviceGateway struct {
	*podGateway
	pki     testPKI
	offline atomic.Bool
}

func newServiceGateway(t *testing.T) *serviceGateway {
	t.Helper()
	s := &serviceGateway{pki: newPKI(t)}
	s.podGateway = newPodGateway(t, s.options()...)
	s.deliverService("a")
	return s
}

func (s *serviceGateway) options() []option {
	return []option{withTLS(s.pki), func(c *localapi.Config) { c.Online = func() bool { return !s.offline.Load() } }}
}

// program returns a client with the node's rights and a program's name, which does not retry.
func (s *serviceGateway) program(userAgent string) kubernetes.Interface {
	s.t.Helper()
	return clientFor(s.t, withoutRetries(&rest.Config{Host: "https://" + s.api.Addr(), QPS: -1, UserAgent: userAgent, TLSClientConfig: rest.TLSClientConfig{
		CAFile: s.pki.path("ca.crt"), CertFile: s.pki.path("client.crt"), KeyFile: s.pki.path("client.key"),
	}}))
}

const proxyAgent, kubeletAgent = "kube-proxy/v1.36.0 (linux/amd64)", "kubelet/v1.36.0 (linux/amd64)"

func (s *serviceGateway) deliverService(name string) {
	s.t.Helper()
	s.deliverObjects(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "s1", ResourceVersion: "1"}})
}

func (s *serviceGateway) removeService(name string) {
	s.t.Helper()
	s.deliverRaw(wire.Key{Resource: "services", Namespace: "default", Name: name}, nil)
}

func (s *serviceGateway) deliverByNeed() {
	s.t.Helper()
	s.deliverJSON(wire.ServicesByNeedKey(), wire.NewServicesByNeedMark())
}

func (s *serviceGateway) deliverServiceMarks() {
	s.t.Helper()
	for _, k := range wire.ServiceScopes() {
		s.deliverJSON(k.Marker(), k.Mark())
	}
}

func (s *serviceGateway) wanted() (scopes []string) {
	wants, _ := s.api.WantedScopes()
	for _, w := range wants {
		scopes = append(scopes, w.String())
	}
	return scopes
}

func listServices(ctx context.Context, c kubernetes.Interface) (int, error) {
	list, err := c.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	return len(list.Items), nil
}

// TestServices_KubeletNeedsNoScope: a kubelet, of this process or a stock one, is given what the gateway holds; nothing is asked for.
func TestServices_KubeletNeedsNoScope(t *testing.T) {
	s := newServiceGateway(t)
	s.deliverByNeed()
	for name, client := range map[string]kubernetes.Interface{"in memory": s.newClient(true), "with the node's certificate": s.program(kubeletAgent)} {
		if n, err := listServices(t.Context(), client); err != nil || n != 1 {
			t.Errorf("a kubelet %s: %d, %v", name, n, err)
		}
		w, err := client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatalf("a kubelet's watch %s: %v", name, err)
		}
		w.Stop()
	}
	if got := s.wanted(); len(got) != 0 {
		t.Errorf("a kubelet makes the gateway ask for %q", got)
	}
}

// TestServices_ProxyWaitsForItsScope: a kube-proxy with the node's certificate is answered when all Services are here, and also
// without a link after a restart.
func TestServices_ProxyWaitsForItsScope(t *testing.T) {
	s := newServiceGateway(t)
	s.deliverByNeed()
	type answer struct {
		count int
		err   error
	}
	answers := make(chan answer, 1)
	_, changed := s.api.WantedScopes()
	go func() {
		n, err := listServices(t.Context(), s.program(proxyAgent))
		answers <- answer{n, err}
	}()
	kit.Receive(t, "the scope is asked for", changed)
	if got := s.wanted(); len(got) != 1 || got[0] != "services.v1" {
		t.Errorf("the gateway asks for %q", got)
	}
	s.deliverService("b")
	select {
	case a := <-answers:
		t.Fatalf("the list was answered before it was complete: %+v", a)
	case <-time.After(50 * time.Millisecond):
	}
	s.deliverServiceMarks()
	if a := kit.Receive(t, "the list", answers); a.err != nil || a.count != 2 {
		t.Errorf("the list: %+v", a)
	}
	s.offline.Store(true)
	s.stop()
	s.start(append(s.options(), func(c *localapi.Config) { c.Pods = s.pods })...)
	if n, err := listServices(t.Context(), s.program(proxyAgent)); err != nil || n != 2 {
		t.Errorf("after a restart without a link: %d, %v", n, err)
	}
	if _, err := s.program(proxyAgent).DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("slices after a restart without a link: %v", err)
	}
}

// TestServices_OlderCloudSendsAll: until the cloud says otherwise, the gateway has all Services, and only notes who reads them.
func TestServices_OlderCloudSendsAll(t *testing.T) {
	s := newServiceGateway(t)
	s.offline.Store(true)
	if n, err := listServices(t.Context(), s.program(proxyAgent)); err != nil || n != 1 {
		t.Errorf("the list: %d, %v", n, err)
	}
	if got := s.wanted(); len(got) != 1 || got[0] != "services.v1" {
		t.Errorf("the gateway notes %q", got)
	}
}

// TestServices_MoveIsNoDeletion: when the cloud begins to send Services by need, a program never takes what is removed for deleted.
func TestServices_MoveIsNoDeletion(t *testing.T) {
	for name, slow := range map[string]bool{"a watch that is open": false, "a watch that comes back": true} {
		t.Run(name, func(t *testing.T) {
			s := newServiceGateway(t)
			c := s.program(proxyAgent)
			list, err := c.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			open := func() (watch.Interface, error) {
				return c.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
			}
			var w watch.Interface
			if !slow {
				if w, err = open(); err != nil {
					t.Fatal(err)
				}
			}
			s.deliverByNeed()
			s.removeService("a")
			if slow { // the scope was granted, and is complete, when it comes back
				s.deliverService("a")
				s.deliverServiceMarks()
				if w, err = open(); apierrors.IsResourceExpired(err) {
					return
				} else if err != nil {
					t.Fatal(err)
				}
			}
			defer w.Stop()
			e := kit.Receive(t, "the end of the watch", w.ResultChan())
			if e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
				t.Errorf("the watch said %v %+v", e.Type, e.Object)
			}
		})
	}
}

// TestServices_AreAskedForAfterGrace: a gateway that was given all Services says only after the grace period that it asks for
// them, and then also after a restart. A new one says it at once.
func TestServices_AreAskedForAfterGrace(t *testing.T) {
	s := newServiceGateway(t)
	kit.Eventually(t, "it is recorded", func() bool { kept, _ := s.store.List("frond.io", "asks", ""); return len(kept) == 1 })
	if !s.api.ServicesByNeed() {
		t.Error("a new gateway does not ask by need")
	}
	asks, _ := s.store.List("frond.io", "asks", "")
	if _, err := s.store.Delete(t.Context(), asks[0].Key, "", nil); err != nil { // as an older version leaves the store
		t.Fatal(err)
	}
	restart := func(grace time.Duration) {
		s.stop()
		s.start(append(s.options(), func(c *localapi.Config) { c.Pods, c.ScopeGrace = s.pods, grace })...)
	}
	restart(time.Hour)
	if s.api.ServicesByNeed() {
		t.Error("an updated gateway asks by need before its programs were heard")
	}
	restart(20 * time.Millisecond)
	kit.Eventually(t, "it asks by need", func() bool { return s.api.ServicesByNeed() })
	kit.Eventually(t, "that is recorded", func() bool { kept, _ := s.store.List("frond.io", "asks", ""); return len(kept) == 1 })
	restart(time.Hour)
	if !s.api.ServicesByNeed() {
		t.Error("after a restart the gateway is given all Services again")
	}
}

package localapi_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/localapi/limit"
	"github.com/frond-edge/frond/leaf/localapi/relay"
	"github.com/frond-edge/frond/test/kit"
)

// leaseCloud simulates the cloud's leases of a namespace: lists, and the changes since a version.
type leaseCloud struct {
	mu      sync.Mutex // guards all fields below
	version int
	objects map[string]coordinationv1.Lease
	history []changeFrame
	changed chan struct{} // closed and replaced with each change
	refused int           // the code of each answer; 0: success
	watches int           // requested watches
	tokens  map[string]bool
	broken  int           // answers that end within a change
	page    int           // largest page, in objects; 0: as requested
	hold    chan struct{} // if not nil, the last page signals here that it was requested, and waits for a release
}

type changeFrame struct {
	Type    watch.EventType      `json:"type"`
	Object  coordinationv1.Lease `json:"object"`
	version int
}

func newLeaseCloud() *leaseCloud {
	return &leaseCloud{version: 4711, objects: map[string]coordinationv1.Lease{}, changed: make(chan struct{}), tokens: map[string]bool{}}
}

func (l *leaseCloud) setLease(name, holder string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kind := watch.Added
	if _, there := l.objects[name]; there {
		kind = watch.Modified
	}
	l.version++
	o := coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: strconv.Itoa(l.version)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}
	l.objects[name] = o
	l.history = append(l.history, changeFrame{kind, o, l.version})
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *leaseCloud) refuseWith(code int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = code
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *leaseCloud) watchesSeen() (watches int, tokens []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for token := range l.tokens {
		tokens = append(tokens, token)
	}
	return l.watches, tokens
}

func (l *leaseCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/leases") {
		serveDiscovery(w, r)
		return
	}
	query := r.URL.Query()
	after, _ := strconv.Atoi(query.Get("resourceVersion"))
	wait, _ := strconv.Atoi(query.Get("wait"))
	until := time.After(time.Duration(wait) * time.Millisecond)
	for {
		l.mu.Lock()
		l.tokens[r.Header.Get("Authorization")] = true
		refused, moved, items := l.refused, l.changed, []coordinationv1.Lease{}
		for _, o := range l.objects {
			items = append(items, o)
		}
		list := coordinationv1.LeaseList{
			TypeMeta: metav1.TypeMeta{Kind: "LeaseList", APIVersion: "coordination.k8s.io/v1"},
			ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(l.version)}, Items: items,
		}
		at := slices.IndexFunc(l.history, func(f changeFrame) bool { return f.version > after })
		var next []changeFrame
		if at >= 0 {
			next = slices.Clone(l.history[at:])
		}
		l.mu.Unlock()
		switch {
		case refused != 0:
			answerStatus(w, int32(refused), metav1.StatusReason(http.StatusText(refused)))
			return
		case query.Get("watch") == "":
			l.writePage(r.Context(), w, query, list)
			return
		case len(next) > 0:
			l.mu.Lock()
			l.watches++
			broken := l.broken > 0
			l.broken--
			l.mu.Unlock()
			for _, f := range next {
				writeAnswer(w, http.StatusOK, f)
			}
			if broken {
				_, _ = io.WriteString(w, `{"type":"MODIFIED","object":{"metadata":`)
			}
			return
		}
		select {
		case <-moved:
		case <-until:
			w.WriteHeader(http.StatusOK)
			return
		case <-r.Context().Done():
			return
		}
	}
}

// writePage returns a page in the order of names; the last one waits on hold, if it is set.
func (l *leaseCloud) writePage(ctx context.Context, w http.ResponseWriter, query url.Values, list coordinationv1.LeaseList) {
	slices.SortFunc(list.Items, func(a, b coordinationv1.Lease) int { return strings.Compare(a.Name, b.Name) })
	from, _ := strconv.Atoi(query.Get("continue"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	l.mu.Lock()
	most, hold := l.page, l.hold
	l.mu.Unlock()
	if most > 0 && (limit == 0 || limit > most) {
		limit = most
	}
	if to := from + limit; limit > 0 && to < len(list.Items) {
		list.Items, list.Continue = list.Items[:to], strconv.Itoa(to)
	} else if hold != nil {
		select {
		case hold <- struct{}{}:
			<-hold
		case <-ctx.Done():
		}
	}
	list.Items = list.Items[from:]
	writeAnswer(w, http.StatusOK, list)
}

// newFollower returns a gateway whose pod has all rights on leases, and the cloud that has them; off cuts the link.
func newFollower(t *testing.T, options ...option) (s *podGateway, l *leaseCloud, off func()) {
	t.Helper()
	var mu sync.Mutex
	online := true
	s = newPodGateway(t, append(options, func(c *localapi.Config) {
		c.Online = func() bool { mu.Lock(); defer mu.Unlock(); return online }
	})...)
	s.bindRole("default", rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}})
	l = newLeaseCloud()
	s.cloud.goOnline(l.ServeHTTP)
	return s, l, func() {
		mu.Lock()
		online = false
		mu.Unlock()
		s.cloud.goOffline()
	}
}

// inJSON selects JSON, which the fake cloud reads.
func inJSON(cfg *rest.Config) *rest.Config {
	cfg.ContentType = runtime.ContentTypeJSON
	return cfg
}

// TestRelayedWatch_InformerFollowsLeases: a program's informer lists and follows leases, by requests to the cloud with its
// own token, and continues after a short link cut.
func TestRelayedWatch_InformerFollowsLeases(t *testing.T) {
	s, l, _ := newFollower(t)
	l.setLease("a", "one")
	token := s.issuer.Token(podClaims())
	factory := informers.NewSharedInformerFactoryWithOptions(clientFor(t, inJSON(s.configFor(token))), 0, informers.WithNamespace("default"))
	seen := factory.Coordination().V1().Leases()
	informer := seen.Informer()
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	defer func() { cancel(); factory.Shutdown() }()
	holds := func(name, holder string) func() bool {
		return func() bool {
			lease, err := seen.Lister().Leases("default").Get(name)
			return err == nil && *lease.Spec.HolderIdentity == holder
		}
	}
	kit.Eventually(t, "the informer has synced", func() bool { return informer.HasSynced() && holds("a", "one")() })
	l.setLease("a", "two")
	l.setLease("b", "one")
	kit.Eventually(t, "the informer follows", func() bool { return holds("a", "two")() && holds("b", "one")() })

	s.cloud.goOffline()
	l.setLease("a", "three")
	l.refuseWith(0) // the request in flight is answered
	s.cloud.goOnline(l.ServeHTTP)
	kit.Eventually(t, "the informer goes on with the link", holds("a", "three"))
	if _, tokens := l.watchesSeen(); !slices.Equal(tokens, []string{"Bearer " + token}) {
		t.Errorf("the cloud was asked as %q", tokens)
	}
	if s.api.Relays() != 1 {
		t.Errorf("%d watches are relayed, want 1", s.api.Relays())
	}
	cancel()
	kit.Eventually(t, "the watch has ended", func() bool { return s.api.Relays() == 0 })
}

// TestRelayedWatch_AllNamespaces: a watch of all namespaces is relayed too, at a path that the cloud accepts.
func TestRelayedWatch_AllNamespaces(t *testing.T) {
	s, l, _ := newFollower(t)
	s.deliverJSON(wire.Key{Group: rbacv1.GroupName, Resource: "clusterroles", Name: "leases"}, rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "leases", UID: "r2"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}}},
	})
	s.deliverJSON(wire.Key{Group: rbacv1.GroupName, Resource: "clusterrolebindings", Name: "leases"}, rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "leases", UID: "b2"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "robot"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "leases"},
	})
	l.setLease("a", "one")
	factory := informers.NewSharedInformerFactory(clientFor(t, inJSON(s.configFor(s.issuer.Token(podClaims())))), 0)
	seen := factory.Coordination().V1().Leases()
	informer := seen.Informer()
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	defer func() { cancel(); factory.Shutdown() }()
	kit.Eventually(t, "the informer has synced", informer.HasSynced)
	l.setLease("b", "one")
	kit.Eventually(t, "the informer follows", func() bool {
		_, err := seen.Lister().Leases("default").Get("b")
		return err == nil
	})
	for _, r := range s.cloud.requestsSeen() {
		if r.Wait > 0 && r.Path != "/apis/coordination.k8s.io/v1/leases" {
			t.Errorf("a watch of %q", r.Path)
		}
	}
}

// TestRelayedWatch_PassesOnRefusals: Kubernetes' refusal of a relayed watch is returned unchanged, at its start and later.
func TestRelayedWatch_PassesOnRefusals(t *testing.T) {
	s, l, off := newFollower(t)
	c := clientFor(t, inJSON(withoutRetries(s.configFor(s.issuer.Token(podClaims())))))
	l.setLease("a", "one")
	follow := func(version string) (watch.Interface, error) {
		return c.CoordinationV1().Leases("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	}
	if _, err := follow("1000000000000000009"); !apierrors.IsResourceExpired(err) {
		t.Errorf("from a version of the gateway: %v", err)
	}
	for code, is := range map[int]func(error) bool{http.StatusForbidden: apierrors.IsForbidden, http.StatusGone: apierrors.IsGone} {
		l.refuseWith(code)
		if _, err := follow("4711"); !is(err) {
			t.Errorf("at the beginning: %v, want code %d", err, code)
		}
		l.refuseWith(0)
		w, err := follow("4711")
		if err != nil {
			t.Fatal(err)
		}
		if e := <-w.ResultChan(); e.Type != watch.Added {
			t.Fatalf("first event %+v", e)
		}
		l.refuseWith(code)
		if e := <-w.ResultChan(); e.Type != watch.Error || !is(apierrors.FromObject(e.Object)) {
			t.Errorf("in the middle: %+v, want code %d", e, code)
		}
		w.Stop()
		l.refuseWith(0)
	}
	w, err := follow("4711")
	if err != nil {
		t.Fatal(err)
	}
	<-w.ResultChan()
	l.refuseWith(http.StatusUnauthorized) // its token has expired
	for e := range w.ResultChan() {
		t.Errorf("a watch whose token expired ended with %+v", e)
	}
	kit.Eventually(t, "all watches have ended", func() bool { return s.api.Relays() == 0 })
	off()
	for what, try := range map[string]func() error{
		"watch": func() error { _, err := follow("4711"); return err },
		"list": func() error {
			_, err := c.CoordinationV1().Leases("default").List(t.Context(), metav1.ListOptions{})
			return err
		},
	} {
		if err := try(); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "cannot ask the cloud") {
			t.Errorf("%s without a link: %v", what, err)
		}
	}
}

// TestRelayedWatch_ListsPageByPage: the initial list is sent as it arrives, so that a gateway never holds all of it; then
// the bookmark, and the changes meanwhile.
func TestRelayedWatch_ListsPageByPage(t *testing.T) {
	s, l, _ := newFollower(t)
	for i := range 5 {
		l.setLease(fmt.Sprint("a", i), "one")
	}
	l.page, l.hold = 2, make(chan struct{})
	c := clientFor(t, inJSON(withoutRetries(s.configFor(s.issuer.Token(podClaims())))))
	yes := true
	w, err := c.CoordinationV1().Leases("default").Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	late := time.After(time.Minute)
	next := func() string {
		select {
		case e := <-w.ResultChan():
			lease, ok := e.Object.(*coordinationv1.Lease)
			if !ok {
				t.Fatalf("%+v", e)
			}
			return string(e.Type) + " " + lease.Name + " " + lease.Annotations[metav1.InitialEventsAnnotationKey]
		case <-late:
			t.Fatal("no more is told")
			return ""
		}
	}
	for i := range 4 {
		if got := next(); got != fmt.Sprintf("ADDED a%d ", i) {
			t.Fatalf("%q while the last page is on its way", got)
		}
	}
	<-l.hold
	l.setLease("b", "one")
	l.hold <- struct{}{}
	for _, want := range []string{"ADDED a4 ", "BOOKMARK  true", "ADDED b "} {
		if got := next(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestRelayedWatch_FitsLinkBudget: on a slow link a relayed list comes in pages that fit, for objects of any size. All
// relays share the link's budget, and an object that exceeds it is refused with a reason.
func TestRelayedWatch_FitsLinkBudget(t *testing.T) {
	const take, many = 16 << 10, 12
	s, l, _ := newFollower(t, func(c *localapi.Config) { c.LinkBudget = func() int { return take } })
	for i := range many {
		l.setLease(fmt.Sprintf("a%02d", i), strings.Repeat("x", 8<<10))
	}
	c := clientFor(t, inJSON(withoutRetries(s.configFor(s.issuer.Token(podClaims())))))
	w, err := relayFrom(t, c, "")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	late := time.After(time.Minute)
	for i := range many {
		select {
		case e := <-w.ResultChan():
			if lease, ok := e.Object.(*coordinationv1.Lease); !ok || lease.Name != fmt.Sprintf("a%02d", i) {
				t.Fatalf("object %d: %+v", i, e)
			}
		case <-late:
			t.Fatalf("%d objects came", i)
		}
	}
	before := len(s.cloud.requestsSeen())
	second, err := relayFrom(t, c, "1")
	if err != nil {
		t.Fatal(err)
	}
	defer second.Stop()
	for i, r := range s.cloud.requestsSeen() {
		if most := take; r.MaxBytes <= 0 || r.MaxBytes > most || i >= before && r.Wait == 50 && r.MaxBytes > most/2 {
			t.Errorf("question %d, %s?%s, takes %d", i, r.Path, r.Query, r.MaxBytes)
		}
	}
	l.setLease("0", strings.Repeat("x", 30<<10)) // it is on the first page
	if _, err := relayFrom(t, c, ""); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("of what is larger: %v", err)
	}
}

// TestRelayedWatch_BrokenReplyLosesNoChange: the complete changes of a truncated answer are sent once, by the next answer at the latest.
func TestRelayedWatch_BrokenReplyLosesNoChange(t *testing.T) {
	s, l, _ := newFollower(t)
	c := clientFor(t, inJSON(withoutRetries(s.configFor(s.issuer.Token(podClaims())))))
	l.setLease("a", "one")
	w, err := relayFrom(t, c, "4711")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := <-w.ResultChan(); e.Type != watch.Added {
		t.Fatalf("first event %+v", e)
	}
	l.mu.Lock()
	l.broken = 1
	l.mu.Unlock()
	l.setLease("a", "two")
	l.setLease("a", "three")
	var held []string
	for late := time.After(time.Minute); len(held) == 0 || held[len(held)-1] != "three"; {
		select {
		case e := <-w.ResultChan():
			lease, ok := e.Object.(*coordinationv1.Lease)
			if !ok {
				t.Fatalf("after %q: %+v", held, e)
			}
			held = append(held, *lease.Spec.HolderIdentity)
		case <-late:
			t.Fatalf("told %q and no more", held)
		}
	}
	if !slices.Equal(held, []string{"two", "three"}) {
		t.Errorf("told %q", held)
	}
}

// TestRelayedWatch_IsLimited: a gateway's programs cannot open more relayed watches than the cloud serves of one node, and
// one program cannot use up all of them.
func TestRelayedWatch_IsLimited(t *testing.T) {
	s, l, _ := newFollower(t)
	l.setLease("a", "one")
	var all []watch.Interface
	defer func() {
		for _, w := range all {
			w.Stop()
		}
	}()
	open := func(c kubernetes.Interface) error {
		w, err := relayFrom(t, c, "4711")
		if err == nil {
			all = append(all, w)
		}
		return err
	}
	var clients []kubernetes.Interface
	for i := range relay.MaxRelays/limit.MaxAccountRelays + 1 {
		other, of := newPod(fmt.Sprint("web-", i), fmt.Sprint("w", i), "1"), podClaims()
		other.Spec.ServiceAccountName, of.Pod, of.PodUID = "robot", other.Name, string(other.UID)
		s.deliverObjects(other)
		clients = append(clients, clientFor(t, inJSON(withoutRetries(s.configFor(s.issuer.Token(of))))))
	}
	for i, c := range clients[:len(clients)-1] {
		for n := range limit.MaxAccountRelays + 1 {
			if err := open(c); (n == limit.MaxAccountRelays) != apierrors.IsTooManyRequests(err) {
				t.Fatalf("watch %d of program %d: %v", n, i, err)
			}
		}
	}
	last := clients[len(clients)-1]
	if err := open(last); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("with all taken: %v", err)
	}
	all[0].Stop()
	kit.Eventually(t, "there is room again", func() bool { return open(last) == nil })
}

func relayFrom(t *testing.T, c kubernetes.Interface, version string) (watch.Interface, error) {
	t.Helper()
	w, err := c.CoordinationV1().Leases("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	return w, nil
}

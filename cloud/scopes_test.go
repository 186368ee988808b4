package cloud

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/scopes"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestScopes_ReachTheAskingNodeOnce(t *testing.T) {
	c := newScopeFixture(t)
	core := c.startCloudcore("one", scopes.Config{})
	a, b := c.createNode("a"), c.createNode("b")
	first, second := c.createPod("first", a, "first"), c.createPod("second", a, "second")
	c.createPod("other", b, "other")
	c.grantAccess("first", "first", widgetResource.Group, widgetResource.Resource)
	c.grantAccess("second", "second", widgetResource.Group, widgetResource.Resource)
	scope := c.widgetScope()
	for i := range 20 {
		c.putWidget(fmt.Sprint("w-", i), "small")
	}
	reply := c.requestScopes(a, 1, newScopeWant(scope, first), newScopeWant(scope, second))
	if len(reply.Verdicts) != 2 || reply.Verdicts[0].Reason != "" || reply.Verdicts[1].Reason != "" || reply.Order != 1 {
		t.Fatalf("answer %+v", reply)
	}
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprint("w-", i))
	}
	c.waitForScope(core, a, scope, true, names...)
	// Once per node, for any number of requesting users, and the marker last.
	all := c.publishedFor(a, scope)
	at := slices.IndexFunc(all, func(m wire.Message) bool { return m.Key == scope.Marker() })
	before := map[string]bool{}
	for _, m := range all[:max(at, 0)] {
		before[m.Key.Name] = true
	}
	if len(before) != 20 || len(all) > 30 { // one more may come where the hub's answer was late
		t.Fatalf("%d messages, and %d widgets before the marker; want 20 and the marker", len(all), len(before))
	}
	var mark wire.ScopeMark
	if err := json.Unmarshal(all[at].Object, &mark); err != nil || mark.Spec.Kind != "Widget" || !mark.Spec.Namespaced || mark.Spec.Scope != scope {
		t.Errorf("marker %s, %v", all[at].Object, err)
	}

	c.putWidget("w-3", "large")
	c.putWidget("w-new", "small")
	c.deleteWidget("w-4")
	names = append(append(names[:4:4], names[5:]...), "w-new")
	c.waitForScope(core, a, scope, true, names...)
	kit.Succeeds(t, settleTimeout, func() error {
		for _, m := range c.publishedFor(a, scope) {
			if m.Key.Name != "w-3" || !strings.Contains(string(m.Object), "large") {
				continue
			}
			var w struct {
				Metadata metav1.ObjectMeta
				Data     struct{ Metadata map[string]string }
			}
			if err := json.Unmarshal(m.Object, &w); err != nil || w.Metadata.ResourceVersion == "" || w.Metadata.ManagedFields != nil || len(w.Data.Metadata) != 1 {
				t.Fatalf("published %s, %v", m.Object, err)
			}
			return nil
		}
		return fmt.Errorf("the change of w-3 is not there")
	})

	c.requestScopes(a, 2)
	c.waitForScope(core, a, scope, false)
	c.checkMarkerFirst(a, scope)
	if got := c.publishedFor(b, scope); len(got) != 0 {
		t.Errorf("the other node got %d messages", len(got))
	}
}

// checkMarkerFirst checks that no object of an ended scope was removed before its marker.
func (c *scopeFixture) checkMarkerFirst(node string, scope wire.Scope) {
	c.Helper()
	all, ended := c.publishedFor(node, scope), false
	deleted := map[string]bool{}
	for _, m := range all {
		if m.Key == scope.Marker() {
			if ended = m.Op == wire.Delete; ended {
				deleted = map[string]bool{}
			}
			continue
		}
		if deleted[m.Key.Name] = m.Op == wire.Delete; deleted[m.Key.Name] && !ended && c.widgetExists(m.Key) {
			c.Errorf("%s went while the marker said that all is there", m.Key.Human())
		}
	}
}

func (c *scopeFixture) widgetExists(key wire.Key) bool {
	_, err := c.dynamic.Resource(widgetResource).Namespace(key.Namespace).Get(c.Context(), key.Name, metav1.GetOptions{})
	return err == nil
}

func TestScopes_Refusals(t *testing.T) {
	c := newScopeFixture(t)
	core := c.startCloudcore("one", scopes.Config{PerNode: 7, Objects: 3, Users: []string{"static"}})
	a, b := c.createNode("a"), c.createNode("b")
	here, there := c.createPod("here", a, "here"), c.createPod("there", b, "there")
	c.grantAccess("there", "there", widgetResource.Group, widgetResource.Resource)
	c.grantAccess("here", "here", widgetResource.Group, "*")
	c.grantAccess("core", "here", "", "*")
	scope := c.widgetScope()
	for i := range 4 {
		c.putWidget(fmt.Sprint("w-", i), "small")
	}
	everywhere, beta, secrets, events, gadgets := scope, scope, scope, scope, scope
	everywhere.Namespace, beta.Version, gadgets.Resource = "", "v1beta1", "gadgets"
	secrets.Group, secrets.Resource = "", "secrets"
	events.Group, events.Resource = "", "events"
	asked := map[string]struct {
		want wire.ScopeWant
		why  wire.ScopeReason
	}{
		"a service account of another node": {newScopeWant(scope, there), wire.ScopeForeign},
		"another node":                      {newScopeWant(scope, "system:node:"+b), wire.ScopeForeign},
		"an administrator":                  {newScopeWant(scope, "kubernetes-admin"), wire.ScopeForeign},
		"garbled account":                   {newScopeWant(scope, "system:serviceaccount:"+c.ns+":here:x"), wire.ScopeForeign},
		"the node, which may not":           {newScopeWant(scope, "system:node:"+a), wire.ScopeForbidden},
		"allowed user, who may not":         {newScopeWant(scope, "static"), wire.ScopeForbidden},
		"all namespaces":                    {newScopeWant(everywhere, here), wire.ScopeForbidden},
		"another version":                   {newScopeWant(beta, here), wire.ScopeNotServed},
		"no such resource":                  {newScopeWant(gadgets, here), wire.ScopeNotServed},
		"events":                            {newScopeWant(events, here), wire.ScopeUnsuitable},
		"too many objects":                  {newScopeWant(scope, here), wire.ScopeTooLarge},
	}
	order := uint64(0)
	for name, tt := range asked {
		order++
		reply := c.requestScopes(a, order, tt.want)
		if len(reply.Verdicts) != 1 || reply.Verdicts[0].Reason != tt.why || reply.Verdicts[0].Message == "" {
			t.Errorf("%s: %+v, want %s", name, reply, tt.why)
		}
	}
	order++
	many := make([]wire.ScopeWant, 0, 8)
	for i := range 8 {
		s := secrets
		s.Namespace = fmt.Sprint(c.ns, "-", i)
		many = append(many, newScopeWant(s, here))
	}
	if reply := c.requestScopes(a, order, many...); reply.Verdicts[7].Reason != wire.ScopeForbidden || reply.Verdicts[6].Reason != wire.ScopeForbidden {
		t.Errorf("eight scopes, where seven are allowed and none of these: %+v", reply)
	}
	for _, s := range []wire.Scope{scope, everywhere, secrets} {
		if got := c.publishedFor(a, s); len(got) != 0 {
			t.Errorf("%d messages of %s were published", len(got), s)
		}
	}
	c.waitForScope(core, a, scope, false)
}

func TestScopes_MalformedRequestIsAnError(t *testing.T) {
	c := newScopeFixture(t)
	c.startCloudcore("one", scopes.Config{})
	a := c.createNode("a")
	nc := streamstest.Node(t, c.hub, a)
	long := strings.Repeat("x", 300)
	for name, body := range map[string]string{
		"nothing":       "",
		"no JSON":       "\x00\xff",
		"a list":        "[]",
		"other types":   `{"order":"x","wants":7}`,
		"no resource":   `{"order":1,"wants":[{"version":"v1","users":["u"]}]}`,
		"no user":       `{"order":1,"wants":[{"version":"v1","resource":"pods","users":[]}]}`,
		"strange name":  `{"order":1,"wants":[{"version":"v1","resource":"pods/log","users":["u"]}]}`,
		"our own group": `{"order":1,"wants":[{"group":"frond.io","version":"v1","resource":"scopes","users":["u"]}]}`,
		"long name":     `{"order":1,"wants":[{"version":"v1","resource":"` + long + `","users":["u"]}]}`,
		"too many":      `{"order":1,"wants":[` + strings.Repeat(`{"version":"v1","resource":"pods","users":["u"]},`, 256) + `{"version":"v1","resource":"pods","users":["u"]}]}`,
	} {
		var reply wire.ScopesReply
		kit.Succeeds(t, settleTimeout, func() error {
			m, err := nc.Request(subject.CallSubject(a, subject.VerbScopes), []byte(body), 10*time.Second)
			if err != nil {
				return err
			}
			return json.Unmarshal(m.Data, &reply)
		})
		if reply.Error == "" {
			t.Errorf("%s: %+v, want an error", name, reply)
		}
	}
	if reply := c.requestScopes(a, 1); reply.Error != "" || reply.Order != 1 {
		t.Errorf("an empty set after garbage: %+v", reply)
	}
}

func TestScopes_EndWithRightAndPod(t *testing.T) {
	c := newScopeFixture(t)
	core := c.startCloudcore("one", scopes.Config{})
	a, b := c.createNode("a"), c.createNode("b")
	user := c.createPod("op", a, "op")
	c.grantAccess("widgets", "op", widgetResource.Group, widgetResource.Resource)
	c.grantAccess("pods", "op", "", "pods")
	var names []string
	for i := range 10 {
		name := fmt.Sprint("far-", i)
		c.createPod(name, b, "far")
		names = append(names, name)
	}
	pods := wire.Scope{Version: "v1", Resource: "pods", Namespace: c.ns}
	c.putWidget("w", "small")
	if reply := c.requestScopes(a, 1, newScopeWant(c.widgetScope(), user), newScopeWant(pods, user)); reply.Verdicts[0].Reason != "" || reply.Verdicts[1].Reason != "" {
		t.Fatalf("answer %+v", reply)
	}
	c.waitForScope(core, a, c.widgetScope(), true, "w")
	c.waitForScope(core, a, pods, true, append(names, "op")...)

	// Another node's report about a pod reaches the components that read the pod; the node's own report does not return to it.
	c.setPodIP("far-0", "10.9.9.9")
	kit.Succeeds(t, settleTimeout, func() error {
		for _, m := range c.publishedFor(a, pods) {
			if m.Key.Name == "far-0" && strings.Contains(string(m.Object), "10.9.9.9") {
				return nil
			}
		}
		return fmt.Errorf("the address of far-0 is not there")
	})

	// Ten pods are removed at once without termination, which is no mass deletion: none of them runs here.
	c.revokeAccess("pods")
	c.waitForScope(core, a, pods, false, "op")
	c.waitForScope(core, a, c.widgetScope(), true, "w")

	if err := c.kube.CoreV1().Pods(c.ns).Delete(t.Context(), "op", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	c.waitForScope(core, a, c.widgetScope(), false)
	c.checkMarkerFirst(a, c.widgetScope())

	// The pod is created again, and the scopes that it had requested are granted again: the node's request is unchanged.
	c.createPod("op", a, "op")
	c.waitForScope(core, a, c.widgetScope(), true, "w")
}

func (c *scopeFixture) setPodIP(name, ip string) {
	c.Helper()
	patch := fmt.Appendf(nil, `{"status":{"podIP":%q,"podIPs":[{"ip":%q}]}}`, ip, ip)
	if _, err := c.kube.CoreV1().Pods(c.ns).Patch(c.Context(), name, "application/merge-patch+json", patch, metav1.PatchOptions{}, "status"); err != nil {
		c.Fatal(err)
	}
}

func TestScopes_SurviveTakeover(t *testing.T) {
	c := newScopeFixture(t)
	one, two := c.startCloudcore("one", scopes.Config{}), c.startCloudcore("two", scopes.Config{})
	a := c.createNode("a")
	user := c.createPod("op", a, "op")
	c.grantAccess("widgets", "op", widgetResource.Group, widgetResource.Resource)
	for i := range 5 {
		c.putWidget(fmt.Sprint("w-", i), "small")
	}
	kit.Eventually(t, "two members", func() bool { return len(one.members.Live()) == 2 && len(two.members.Live()) == 2 })
	scope := c.widgetScope()
	if reply := c.requestScopes(a, 1, newScopeWant(scope, user)); reply.Verdicts[0].Reason != "" {
		t.Fatalf("answer %+v", reply)
	}
	c.waitForScope(one, a, scope, true, "w-0", "w-1", "w-2", "w-3", "w-4")
	owner, heir := one, two
	if two.members.Owns(a) {
		owner, heir = two, one
	}
	// Creation times are whole seconds: an object that seems as old as the marker would make the new owner distrust the marker.
	marked := c.heldMessages(heir, a)[scope.Marker()].Time
	kit.Succeeds(t, settleTimeout, func() error {
		if time.Now().Truncate(time.Second).After(marked) {
			return nil
		}
		return fmt.Errorf("the second of the marker is not over")
	})
	before := len(c.publishedFor(a, scope))
	owner.nc.Close() // it lives, but its refreshes do not arrive
	began := time.Now()
	c.putWidget("w-5", "small")
	c.deleteWidget("w-0")
	c.waitForScope(heir, a, scope, true, "w-1", "w-2", "w-3", "w-4", "w-5")
	t.Logf("taken over after %s", time.Since(began).Round(time.Millisecond))
	owner.stop()
	for _, m := range c.publishedFor(a, scope)[before:] {
		if m.Key.Name != "w-5" && m.Key.Name != "w-0" {
			t.Errorf("%s %s was published though nothing of it changed", m.Op, m.Key.Human())
		}
	}
	if reply := c.requestScopes(a, 2); len(reply.Verdicts) != 0 {
		t.Fatalf("answer %+v", reply)
	}
	c.waitForScope(heir, a, scope, false)
}

func TestScopes_StaleRequestIsIgnored(t *testing.T) {
	c := newScopeFixture(t)
	core := c.startCloudcore("one", scopes.Config{})
	a := c.createNode("a")
	user := c.createPod("op", a, "op")
	c.grantAccess("widgets", "op", widgetResource.Group, widgetResource.Resource)
	c.putWidget("w", "small")
	scope := c.widgetScope()
	c.requestScopes(a, 5, newScopeWant(scope, user))
	c.waitForScope(core, a, scope, true, "w")
	if reply := c.requestScopes(a, 4); reply.Order != 5 || len(reply.Verdicts) != 0 {
		t.Errorf("a late request: %+v", reply)
	}
	if reply := c.requestScopes(a, 5); reply.Order <= 5 || len(reply.Verdicts) != 0 {
		t.Errorf("another set with the same order, after which the node asks with a higher one: %+v", reply)
	}
	if reply := c.requestScopes(a, 5, newScopeWant(scope, user)); len(reply.Verdicts) != 1 {
		t.Errorf("the same once more: %+v", reply)
	}
	c.waitForScope(core, a, scope, true, "w")
}

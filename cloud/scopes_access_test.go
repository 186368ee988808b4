package cloud

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/kube"
	"github.com/frond-edge/frond/controllers/scopes"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
)

func TestScopes_MarkerFollowsLostObjects(t *testing.T) {
	c := newScopeFixture(t)
	core := c.startCloudcore("one", scopes.Config{})
	a := c.createNode("a")
	user := c.createPod("op", a, "op")
	c.grantAccess("widgets", "op", widgetResource.Group, widgetResource.Resource)
	scope := c.widgetScope()
	names := []string{"w-0", "w-1", "w-2"}
	for _, name := range names {
		c.putWidget(name, "small")
	}
	c.requestScopes(a, 1, newScopeWant(scope, user))
	c.waitForScope(core, a, scope, true, names...)
	js, err := jetstream.New(core.nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subject.DesiredStream)
	if err != nil {
		t.Fatal(err)
	}
	for round, lost := range map[string]string{
		"one object": subject.Of(subject.Desired, a, wire.Key{Group: widgetResource.Group, Resource: widgetResource.Resource, Namespace: c.ns, Name: "w-1"}),
		"everything": subject.Filter(subject.Desired, a),
	} {
		before := len(c.publishedFor(a, scope))
		if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(lost)); err != nil {
			t.Fatal(err)
		}
		core.engine.Resync(a)
		kit.Succeeds(t, settleTimeout, func() error {
			if now := c.publishedFor(a, scope)[before:]; len(now) == 0 || now[len(now)-1].Key != scope.Marker() || now[len(now)-1].Op != wire.Apply {
				return fmt.Errorf("%s: %d messages, none of them a new marker", round, len(now))
			}
			return nil
		})
		c.waitForScope(core, a, scope, true, names...)
		for i, m := range c.publishedFor(a, scope)[before:] {
			if m.Key == scope.Marker() && m.Op == wire.Apply && i < len(c.publishedFor(a, scope)[before:])-1 {
				t.Errorf("%s: the marker came before %d other messages", round, len(c.publishedFor(a, scope)[before:])-1-i)
			}
		}
	}
}

func TestScopes_AccountAccessAndTokenKeys(t *testing.T) {
	c := newScopeFixture(t)
	core := c.startCloudcore("one", scopes.Config{})
	a := c.createNode("a")
	c.createPod("op", a, "op")
	c.grantAccess("mine", "op", widgetResource.Group, widgetResource.Resource)
	c.grantAccess("foreign", "somebody", widgetResource.Group, widgetResource.Resource)
	key := func(resource, name string) wire.Key {
		return wire.Key{Group: rbacv1.GroupName, Resource: resource, Namespace: c.ns, Name: name}
	}
	has := func(k wire.Key) func() bool {
		return func() bool { return c.heldMessages(core, a)[k].Op == wire.Apply }
	}
	eventually := func(what string, condition func() bool) {
		t.Helper()
		kit.Succeeds(t, settleTimeout, func() error {
			if !condition() {
				return fmt.Errorf("not so: %s", what)
			}
			return nil
		})
	}
	eventually("the binding is there", has(key("rolebindings", "mine")))
	eventually("the role is there", has(key("roles", "mine")))
	eventually("what all authenticated users may", has(wire.Key{Group: rbacv1.GroupName, Resource: "clusterrolebindings", Name: "system:discovery"}))
	if has(key("rolebindings", "foreign"))() || has(key("roles", "foreign"))() || has(wire.Key{Group: rbacv1.GroupName, Resource: "clusterroles", Name: "cluster-admin"})() {
		t.Error("the node got what does not concern its accounts")
	}
	// The binding of another account is changed to name the account as a user, and back.
	for _, subj := range []rbacv1.Subject{
		{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:serviceaccount:" + c.ns + ":op"},
		{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:" + c.ns},
	} {
		c.rebindRole("foreign", subj)
		eventually("it names the account as "+subj.Kind, has(key("roles", "foreign")))
		c.rebindRole("foreign", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: c.ns, Name: "somebody"})
		eventually("and no more", func() bool { return !has(key("rolebindings", "foreign"))() && !has(key("roles", "foreign"))() })
	}
	c.revokeAccess("mine")
	eventually("revoked", func() bool { return !has(key("rolebindings", "mine"))() && !has(key("roles", "mine"))() })

	c.checkTokenKeys(core, a)
}

func (c *scopeFixture) rebindRole(name string, subj rbacv1.Subject) {
	c.Helper()
	binding, err := c.kube.RbacV1().RoleBindings(c.ns).Get(c.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	binding.Subjects = []rbacv1.Subject{subj}
	if _, err := c.kube.RbacV1().RoleBindings(c.ns).Update(c.Context(), binding, metav1.UpdateOptions{}); err != nil {
		c.Fatal(err)
	}
}

// checkTokenKeys checks that the keys arrive at a node, and that one of them signs the tokens of the cluster.
func (c *scopeFixture) checkTokenKeys(core *scopeReplica, node string) {
	c.Helper()
	own, err := kubernetes.NewForConfig(c.cluster.ConfigWithRules(c, "frond-scopes-test", cloudRules()))
	if err != nil {
		c.Fatal(err)
	}
	keys := kube.NewTokenKeyPublisher(own, nil, core.engine.SetStatic, zaptest.NewLogger(c))
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.Context()))
	var g errgroup.Group
	g.Go(func() error { return keys.Start(ctx) })
	c.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			c.Error(err)
		}
	})
	token, err := c.kube.CoreV1().ServiceAccounts(c.ns).CreateToken(c.Context(), "op", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	var header struct{ Kid string }
	var claims struct {
		Iss string
		Aud []string
	}
	parts := strings.Split(token.Status.Token, ".")
	for i, into := range []any{&header, &claims} {
		data, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil {
			c.Fatal(err)
		}
		if err := json.Unmarshal(data, into); err != nil {
			c.Fatal(err)
		}
	}
	kit.Succeeds(c, settleTimeout, func() error {
		delivered := c.publishedFor(node, wire.Scope{Group: "frond.io", Resource: "keys"})
		if len(delivered) == 0 {
			return errors.New("no keys")
		}
		var keys wire.TokenKeys
		if err := json.Unmarshal(delivered[0].Object, &keys); err != nil {
			c.Fatalf("%s: %v", delivered[0].Object, err)
		}
		if keys.Issuer != claims.Iss || fmt.Sprint(keys.Audiences) != fmt.Sprint(claims.Aud) || !strings.Contains(string(keys.JWKS), header.Kid) {
			c.Fatalf("keys %s do not fit a token with %+v %+v", delivered[0].Object, header, claims)
		}
		return nil
	})
}

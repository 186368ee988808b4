package access_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/access"
	"github.com/frond-edge/frond/leaf/access/accesstest"
	"github.com/frond-edge/frond/leaf/store"
)

// fakeStore is a store without a disk.
type fakeStore map[wire.Key]store.Entry

func (s fakeStore) Get(key wire.Key) (store.Entry, error) {
	if e, ok := s[key]; ok {
		return e, nil
	}
	return store.Entry{}, store.ErrNotFound
}

func (s fakeStore) List(group, resource, namespace string) ([]store.Entry, uint64) {
	var list []store.Entry
	for k, e := range s {
		if k.Group == group && k.Resource == resource && (namespace == "" || namespace == k.Namespace) {
			list = append(list, e)
		}
	}
	return list, 1
}

func (s fakeStore) putObject(key wire.Key, object []byte) {
	s[key] = store.Entry{Key: key, Revision: uint64(len(s)) + s[key].Revision + 1, Object: object}
}

func (s fakeStore) putRBAC(t *testing.T, resource, namespace, name string, o any) {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	s.putObject(wire.Key{Group: rbacv1.GroupName, Resource: resource, Namespace: namespace, Name: name}, data)
}

var (
	podKey     = wire.Key{Resource: "pods", Namespace: "shop", Name: "till-0"}
	accountKey = wire.Key{Resource: "serviceaccounts", Namespace: "shop", Name: "till"}
	nodeKey    = wire.Key{Resource: "nodes", Name: "edge-1"}
	secretKey  = wire.Key{Resource: "secrets", Namespace: "shop", Name: "till-token"}
	testTime   = time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC)
)

const podJSON = `{"metadata":{"uid":"p1"},"spec":{"nodeName":"edge-1","serviceAccountName":"till"}}`

// newShopStore returns the store of a gateway with one pod.
func newShopStore(issuer *accesstest.Issuer) fakeStore {
	s := fakeStore{}
	s.putObject(wire.TokenKeysKey(), issuer.Keys())
	s.putObject(podKey, []byte(podJSON))
	s.putObject(accountKey, []byte(`{"metadata":{"uid":"a1"}}`))
	s.putObject(nodeKey, []byte(`{"metadata":{"uid":"n1"}}`))
	s.putObject(secretKey, []byte(`{"metadata":{"uid":"s1"}}`))
	return s
}

func validClaims() accesstest.Claims {
	return accesstest.Claims{
		Namespace: "shop", Account: "till", AccountUID: "a1", Pod: "till-0", PodUID: "p1", Node: "edge-1", NodeUID: "n1",
		Issued: testTime.Add(-time.Minute),
	}
}

func TestTokenAuthenticator(t *testing.T) {
	issuer, forger := accesstest.New(t, "https://cluster"), accesstest.New(t, "https://cluster")
	claims := func(change func(*accesstest.Claims)) string {
		c := validClaims()
		change(&c)
		return issuer.Token(c)
	}
	parts := strings.Split(issuer.Token(validClaims()), ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"key-1"}`)) + "." + parts[1] + "."
	for name, tt := range map[string]struct {
		token string
		store func(fakeStore)
		ok    bool
	}{
		"a pod's":                    {token: issuer.Token(validClaims()), ok: true},
		"forged":                     {token: forger.Token(validClaims())},
		"unsigned":                   {token: none},
		"cut":                        {token: parts[0] + "." + parts[1] + "."},
		"no token":                   {token: "swordfish"},
		"of another issuer":          {token: claims(func(c *accesstest.Claims) { c.Issuer = "https://other" })},
		"for another audience":       {token: claims(func(c *accesstest.Claims) { c.Audience = "vault" })},
		"with another subject":       {token: claims(func(c *accesstest.Claims) { c.Subject = "system:admin" })},
		"of an older pod":            {token: claims(func(c *accesstest.Claims) { c.PodUID = "p0" })},
		"of a pod elsewhere":         {token: claims(func(c *accesstest.Claims) { c.Pod, c.PodUID = "till-1", "p2" })},
		"of another node's":          {token: claims(func(c *accesstest.Claims) { c.Node = "edge-2" })},
		"of an older account":        {token: claims(func(c *accesstest.Claims) { c.AccountUID = "a0" })},
		"of another account":         {token: claims(func(c *accesstest.Claims) { c.Account = "root" })},
		"of a pod without UID":       {token: claims(func(c *accesstest.Claims) { c.PodUID = "" })},
		"expired":                    {token: claims(func(c *accesstest.Claims) { c.Issued = testTime.Add(-2 * time.Hour) })},
		"of an account alone":        {token: claims(func(c *accesstest.Claims) { c.Pod, c.Node = "", "" }), ok: true},
		"of the node":                {token: claims(func(c *accesstest.Claims) { c.Pod = "" }), ok: true},
		"of a node before":           {token: claims(func(c *accesstest.Claims) { c.Pod, c.NodeUID = "", "n0" })},
		"of a Secret":                {token: claims(func(c *accesstest.Claims) { c.Pod, c.Node, c.Secret, c.SecretUID = "", "", "till-token", "s1" }), ok: true},
		"of a Secret that is gone":   {token: claims(func(c *accesstest.Claims) { c.Pod, c.Node, c.Secret, c.SecretUID = "", "", "old", "s0" })},
		"from a clock that is ahead": {token: claims(func(c *accesstest.Claims) { c.Issued = testTime.Add(time.Hour) }), ok: true},
		"of a pod that ends": {token: issuer.Token(validClaims()), ok: true, store: func(s fakeStore) {
			s.putObject(podKey, []byte(strings.Replace(podJSON, `"uid":"p1"`, `"uid":"p1","deletionTimestamp":"2031-05-01T12:00:30Z"`, 1)))
		}},
		"of a pod that ended": {token: issuer.Token(validClaims()), store: func(s fakeStore) {
			s.putObject(podKey, []byte(strings.Replace(podJSON, `"uid":"p1"`, `"uid":"p1","deletionTimestamp":"2031-05-01T11:58:00Z"`, 1)))
		}},
		"of a pod that another node runs": {token: issuer.Token(validClaims()), store: func(s fakeStore) {
			s.putObject(podKey, []byte(strings.Replace(podJSON, "edge-1", "edge-2", 1)))
		}},
		"after the keys changed": {token: issuer.Token(validClaims()), store: func(s fakeStore) {
			s.putObject(wire.TokenKeysKey(), accesstest.New(t, "https://cluster").Keys())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShopStore(issuer)
			if tt.store != nil {
				tt.store(s)
			}
			u, err := access.NewTokenAuthenticator(access.Config{Node: "edge-1", Now: func() time.Time { return testTime }}, s).Authenticate(t.Context(), tt.token)
			if ok := err == nil; ok != tt.ok {
				t.Fatalf("it is %v: %v", u, err)
			}
			if err != nil && !errors.Is(err, access.ErrNotAuthenticated) {
				t.Errorf("the error is no ErrNotAuthenticated: %v", err)
			}
			if err == nil && u.GetName() != "system:serviceaccount:shop:till" {
				t.Errorf("it is %s", u.GetName())
			}
		})
	}
}

func TestTokenAuthenticator_ReturnsUser(t *testing.T) {
	issuer := accesstest.New(t, "https://cluster")
	u, err := access.NewTokenAuthenticator(access.Config{Node: "edge-1", Now: func() time.Time { return testTime }}, newShopStore(issuer)).Authenticate(t.Context(), issuer.Token(validClaims()))
	if err != nil {
		t.Fatal(err)
	}
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:shop"}
	if u.GetUID() != "a1" || !slices.Equal(u.GetGroups(), groups) {
		t.Errorf("UID %s, groups %v", u.GetUID(), u.GetGroups())
	}
	for key, want := range map[string]string{
		"authentication.kubernetes.io/pod-name": "till-0", "authentication.kubernetes.io/pod-uid": "p1",
		"authentication.kubernetes.io/node-name": "edge-1", "authentication.kubernetes.io/node-uid": "n1",
		"authentication.kubernetes.io/credential-id": "JTI=jti-1",
	} {
		if got := u.GetExtra()[key]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s is %v", key, got)
		}
	}
}

// TestTokenAuthenticator_ExpiredToken: a token that could not be renewed is valid for a while, and only for its pod.
func TestTokenAuthenticator_ExpiredToken(t *testing.T) {
	issuer := accesstest.New(t, "https://cluster")
	newest := issuer.Token(validClaims())
	older := validClaims()
	older.Issued = testTime.Add(-30 * time.Minute)
	unbound := validClaims()
	unbound.Pod, unbound.Node = "", ""
	for name, tt := range map[string]struct {
		token string
		after time.Duration
		store func(fakeStore)
		ok    bool
	}{
		"in time":             {token: newest, ok: true},
		"a day late":          {token: newest, after: 24 * time.Hour, ok: true},
		"a week late":         {token: newest, after: 8 * 24 * time.Hour},
		"not the newest":      {token: issuer.Token(older), after: 24 * time.Hour},
		"bound to no pod":     {token: issuer.Token(unbound), after: 24 * time.Hour},
		"of a pod that went":  {token: newest, after: 24 * time.Hour, store: func(s fakeStore) { delete(s, podKey) }},
		"of a pod made again": {token: newest, after: 24 * time.Hour, store: func(s fakeStore) { s.putObject(podKey, []byte(strings.Replace(podJSON, "p1", "p9", 1))) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShopStore(issuer)
			if tt.store != nil {
				tt.store(s)
			}
			cfg := access.Config{
				Node: "edge-1", ExpiryGrace: 7 * 24 * time.Hour, Now: func() time.Time { return testTime.Add(tt.after) },
				IsNewest: func(pod wire.Key, uid, token string) bool { return pod == podKey && uid == "p1" && token == newest },
			}
			if _, err := access.NewTokenAuthenticator(cfg, s).Authenticate(t.Context(), tt.token); (err == nil) != tt.ok {
				t.Errorf("%v", err)
			} else if late := new(access.ExpiredError); !tt.ok && tt.store == nil && !errors.As(err, &late) {
				t.Errorf("its bearer cannot be told why: %v", err)
			}
		})
	}
}

// TestTokenAuthenticator_ClockBehind: a gateway without a battery boots in 1970; times signed by the cluster correct it.
func TestTokenAuthenticator_ClockBehind(t *testing.T) {
	issuer := accesstest.New(t, "https://cluster")
	tokens := access.NewTokenAuthenticator(access.Config{Node: "edge-1", Now: func() time.Time { return time.Unix(0, 0) }}, newShopStore(issuer))
	old := validClaims()
	old.Issued = testTime.Add(-2 * time.Hour)
	if _, err := tokens.Authenticate(t.Context(), issuer.Token(validClaims())); err != nil {
		t.Fatalf("a token of the present: %v", err)
	}
	if _, err := tokens.Authenticate(t.Context(), issuer.Token(old)); !errors.Is(err, access.ErrNotAuthenticated) {
		t.Errorf("a token that had expired when a newer one was signed: %v", err)
	}
}

func TestTokenAuthenticator_WithoutKeysIsUnknown(t *testing.T) {
	issuer := accesstest.New(t, "https://cluster")
	s := newShopStore(issuer)
	delete(s, wire.TokenKeysKey())
	_, err := access.NewTokenAuthenticator(access.Config{Node: "edge-1"}, s).Authenticate(t.Context(), issuer.Token(validClaims()))
	if !errors.Is(err, access.ErrUnknown) {
		t.Errorf("%v", err)
	}
}

func TestAuthorizer(t *testing.T) {
	s := fakeStore{}
	read := []rbacv1.PolicyRule{{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}}
	one := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"mine"}}}
	browse := []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/api", "/apis/*"}}}
	till := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "shop", Name: "till"}
	s.putRBAC(t, "roles", "shop", "reader", rbacv1.Role{Rules: read})
	s.putRBAC(t, "rolebindings", "shop", "reader", rbacv1.RoleBinding{
		Subjects: []rbacv1.Subject{till}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
	})
	s.putRBAC(t, "clusterroles", "", "mine", rbacv1.ClusterRole{Rules: one})
	s.putRBAC(t, "rolebindings", "shop", "mine", rbacv1.RoleBinding{
		Subjects: []rbacv1.Subject{till}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "mine"},
	})
	s.putRBAC(t, "clusterroles", "", "browse", rbacv1.ClusterRole{Rules: browse})
	s.putRBAC(t, "clusterrolebindings", "", "browse", rbacv1.ClusterRoleBinding{
		Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: user.AllAuthenticated}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "browse"},
	})
	known := true
	rules := access.NewAuthorizer("edge-1", s, func() bool { return known })
	account := &user.DefaultInfo{Name: "system:serviceaccount:shop:till", Groups: []string{"system:serviceaccounts", user.AllAuthenticated}}
	ask := func(u user.Info, verb, namespace, resource, name string) (bool, error) {
		ok, _, err := rules.Authorize(t.Context(), authorizer.AttributesRecord{
			User: u, Verb: verb, Namespace: namespace, Resource: resource, Name: name, ResourceRequest: true,
		})
		return ok, err
	}
	for question, want := range map[[4]string]bool{
		{"list", "shop", "configmaps", ""}:      true,
		{"watch", "shop", "configmaps", ""}:     false,
		{"list", "bank", "configmaps", ""}:      false,
		{"list", "", "configmaps", ""}:          false,
		{"get", "shop", "secrets", "mine"}:      true,
		{"get", "shop", "secrets", "yours"}:     false,
		{"list", "shop", "secrets", ""}:         false,
		{"get", "bank", "secrets", "mine"}:      false,
		{"get", "shop", "pods/log", "till-0"}:   false,
		{"delete", "shop", "configmaps", "all"}: false,
	} {
		if got, err := ask(account, question[0], question[1], question[2], question[3]); got != want || err != nil {
			t.Errorf("%v: %v, %v", question, got, err)
		}
	}
	for path, want := range map[string]bool{"/api": true, "/apis/apps": true, "/frond/store": false, "/metrics": false} {
		got, _, err := rules.Authorize(t.Context(), authorizer.AttributesRecord{User: account, Verb: "get", Path: path})
		if got != want || err != nil {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
	kubelet := &user.DefaultInfo{Name: "system:node:edge-1", Groups: []string{user.NodesGroup}}
	other := &user.DefaultInfo{Name: "system:node:edge-2", Groups: []string{user.NodesGroup}}
	for u, want := range map[user.Info]bool{kubelet: true, other: false, &user.DefaultInfo{Name: "a", Groups: []string{user.SystemPrivilegedGroup}}: true} {
		if got, err := ask(u, "list", "bank", "secrets", ""); got != want || err != nil {
			t.Errorf("%s: %v, %v", u.GetName(), got, err)
		}
	}
	// A changed role takes effect at once.
	s.putRBAC(t, "roles", "shop", "reader", rbacv1.Role{})
	if got, err := ask(account, "list", "shop", "configmaps", ""); got || err != nil {
		t.Errorf("after the role was emptied: %v, %v", got, err)
	}
	known = false
	if _, err := ask(account, "list", "shop", "configmaps", ""); !errors.Is(err, access.ErrUnknown) {
		t.Errorf("before anything was delivered: %v", err)
	}
}

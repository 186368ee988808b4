package localapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

const (
	// defaultScopeGrace is how long a scope is kept after its last list or watch ended: a pod that is updated comes back
	// within it, and a job that lists now and then does not make the cloud send everything again each time.
	defaultScopeGrace = 10 * time.Minute
	// scopeWait is how long a first list waits for its scope to be complete. A client waits as long for an apiserver.
	scopeWait = 15 * time.Second
	// refusalFresh is how long the cloud's no is passed on without asking again.
	refusalFresh = 10 * time.Second
	// maxUserScopes bounds what one user follows, so that it leaves something of wire.MaxScopes to others, and of the 64 that the
	// cloud grants a node.
	maxUserScopes = 32
	// wantResource holds in the store what was asked for, so that a gateway that boots offline still answers it.
	wantResource = "wants"
	scopeMarks   = "scopes"
)

// scopes is what programs of this gateway follow, beyond what every gateway is sent: it is asked of the cloud, and the
// cloud's markers say when the store holds all of it.
type scopes struct {
	store *store.Store
	grace time.Duration
	log   *zap.Logger

	mu       sync.Mutex // guards all below
	wants    map[wire.Scope]map[string]*interest
	verdicts map[verdictKey]wire.ScopeVerdict
	judged   time.Time     // when verdicts came
	changed  chan struct{} // closed and replaced when wants changes
	moved    chan struct{} // closed and replaced when a marker or a verdict comes or goes
}

// interest is one user's in one scope.
type interest struct {
	open  int // lists and watches that run
	since time.Time
}

type verdictKey struct {
	wire.Scope
	user string
}

// wantRecord is the stored form.
type wantRecord struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Want wire.ScopeWant `json:"want"`
}

func newScopes(st *store.Store, grace time.Duration, log *zap.Logger) *scopes {
	s := &scopes{
		store: st, grace: cmp.Or(grace, defaultScopeGrace), log: log,
		wants: map[wire.Scope]map[string]*interest{}, verdicts: map[verdictKey]wire.ScopeVerdict{},
		changed: make(chan struct{}), moved: make(chan struct{}),
	}
	entries, _ := st.List(frondGroup, wantResource, "")
	for _, e := range entries {
		var record wantRecord
		if err := json.Unmarshal(e.Object, &record); err != nil || record.Want.Validate() != nil {
			log.Warn("unreadable wish ignored", zap.Stringer("key", e.Key), zap.Error(err))
			continue
		}
		users := map[string]*interest{}
		for _, u := range record.Want.Users {
			users[u] = &interest{since: time.Now()} // a reboot ends nothing: its time begins anew
		}
		s.wants[record.Want.Scope] = users
	}
	return s
}

func wantKey(s wire.Scope) wire.Key {
	key := s.Marker()
	key.Resource, key.Name = wantResource, s.Version+"."+key.Name
	return key
}

// Scopes returns all that programs of this gateway want to follow, each scope once with all its users, and a channel that
// is closed at the next change after this call.
func (s *Server) Scopes() (wants []wire.ScopeWant, changed <-chan struct{}) {
	s.scopes.mu.Lock()
	defer s.scopes.mu.Unlock()
	for scope, users := range s.scopes.wants {
		wants = append(wants, wire.ScopeWant{Scope: scope, Users: slices.Sorted(maps.Keys(users))})
	}
	slices.SortFunc(wants, func(a, b wire.ScopeWant) int { return cmp.Compare(a.String(), b.String()) })
	return wants, s.scopes.changed
}

func (s *Server) countScopes() float64 {
	s.scopes.mu.Lock()
	defer s.scopes.mu.Unlock()
	return float64(len(s.scopes.wants))
}

// Judged takes the cloud's verdicts on what Scopes said. It does not block.
func (s *Server) Judged(verdicts []wire.ScopeVerdict) {
	s.scopes.mu.Lock()
	defer s.scopes.mu.Unlock()
	clear(s.scopes.verdicts)
	s.scopes.judged = time.Now()
	for _, v := range verdicts {
		s.scopes.verdicts[verdictKey{v.Scope, v.User}] = v
	}
	s.scopes.stir()
}

// stir wakes who waits for a scope. It is called with mu held.
func (s *scopes) stir() {
	close(s.moved)
	s.moved = make(chan struct{})
}

// hold keeps a scope wanted for a user until release, and for the grace after it.
func (s *scopes) hold(ctx context.Context, scope wire.Scope, user string) (release func(), err error) {
	s.mu.Lock()
	users := s.wants[scope]
	if users == nil {
		if len(s.wants) >= wire.MaxScopes {
			s.mu.Unlock()
			return nil, apierrors.NewTooManyRequests(fmt.Sprintf("the programs of this gateway follow %d kinds already", wire.MaxScopes), laterSeconds)
		}
		users = map[string]*interest{}
		s.wants[scope] = users
	}
	i := users[user]
	fresh := i == nil
	if fresh && s.countOf(user) >= maxUserScopes {
		if len(users) == 0 {
			delete(s.wants, scope)
		}
		s.mu.Unlock()
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%s follows %d kinds already", user, maxUserScopes), laterSeconds)
	}
	if fresh && len(users) >= wire.MaxScopeUsers {
		s.mu.Unlock()
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d users of this gateway follow %s already", wire.MaxScopeUsers, scope), laterSeconds)
	}
	if fresh {
		i = &interest{}
		users[user] = i
		close(s.changed)
		s.changed = make(chan struct{})
	}
	i.open++
	// An old refusal is asked about again: this caller's roles, which were judged just now, may be newer.
	if v := (verdictKey{scope, user}); s.verdicts[v].Reason != "" && time.Since(s.judged) > refusalFresh {
		delete(s.verdicts, v)
		close(s.changed)
		s.changed = make(chan struct{})
	}
	s.mu.Unlock()
	if fresh {
		s.remember(ctx, scope)
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		i.open--
		i.since = time.Now()
	}), nil
}

// countOf says how many scopes a user wants. It is called with mu held.
func (s *scopes) countOf(user string) int {
	n := 0
	for _, users := range s.wants {
		if users[user] != nil {
			n++
		}
	}
	return n
}

// remember writes down who wants a scope. What cannot be written is wanted all the same until the process ends.
func (s *scopes) remember(ctx context.Context, scope wire.Scope) {
	s.mu.Lock()
	users := slices.Sorted(maps.Keys(s.wants[scope]))
	s.mu.Unlock()
	key := wantKey(scope)
	var err error
	if len(users) == 0 {
		if _, err = s.store.Delete(ctx, key, "", nil); errors.Is(err, store.ErrNotFound) {
			err = nil
		}
	} else {
		record := wantRecord{Want: wire.ScopeWant{Scope: scope, Users: users}}
		record.Metadata.Name = key.Name
		var data []byte
		if data, err = json.Marshal(record); err == nil {
			_, err = s.store.Put(ctx, key, data, nil)
		}
	}
	if err != nil {
		s.log.Warn("a wish is not kept over a restart", zap.Stringer("scope", scope), zap.Error(err))
	}
}

// expire drops what nobody has used for the grace, and returns how long until there may be more to drop.
func (s *scopes) expire(ctx context.Context) time.Duration {
	next := s.grace
	var dropped []wire.Scope
	s.mu.Lock()
	for scope, users := range s.wants {
		before := len(users)
		maps.DeleteFunc(users, func(_ string, i *interest) bool {
			left := s.grace - time.Since(i.since)
			if i.open == 0 && left > 0 {
				next = min(next, left)
			}
			return i.open == 0 && left <= 0
		})
		if len(users) == 0 {
			delete(s.wants, scope)
		}
		if len(users) != before {
			dropped = append(dropped, scope)
		}
	}
	if len(dropped) > 0 {
		close(s.changed)
		s.changed = make(chan struct{})
	}
	s.mu.Unlock()
	for _, scope := range dropped {
		s.remember(ctx, scope)
	}
	return next
}

// run follows the markers and forgets what nobody uses, until ctx ends.
func (s *scopes) run(ctx context.Context) error {
	for ctx.Err() == nil {
		marks, err := s.store.Watch(frondGroup, scopeMarks, "", s.store.Revision())
		if err != nil {
			continue // the revision has moved on meanwhile
		}
		s.mu.Lock()
		s.stir() // what came between two watches
		s.mu.Unlock()
		for err == nil {
			until, cancel := context.WithTimeout(ctx, s.expire(ctx))
			_, err = marks.Next(until)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				err = nil
				continue
			}
			s.mu.Lock()
			s.stir()
			s.mu.Unlock()
		}
		marks.Stop()
	}
	return nil
}

// complete returns what the cloud says of a scope if the store holds all of it, in its namespace or in all.
func (s *scopes) complete(scope wire.Scope) (wire.ScopeKind, bool) {
	for _, namespace := range slices.Compact([]string{scope.Namespace, ""}) {
		scope.Namespace = namespace
		entry, err := s.store.Get(scope.Marker())
		if err != nil {
			continue
		}
		var mark wire.ScopeMark
		if json.Unmarshal(entry.Object, &mark) == nil {
			return mark.Spec, true
		}
	}
	return wire.ScopeKind{}, false
}

// await returns when the store holds all of a scope. Its error is a status that says why it does not: refused by the cloud,
// or, a 503, not known yet. A scope that is held completely was granted, and the caller's roles were judged before.
func (s *scopes) await(ctx context.Context, scope wire.Scope, user string, online bool) error {
	deadline := time.NewTimer(scopeWait)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		moved, verdict := s.moved, s.verdicts[verdictKey{scope, user}]
		s.mu.Unlock()
		if kind, ok := s.complete(scope); ok {
			if kind.Version != scope.Version {
				return otherVersion(scope, kind)
			}
			return nil
		}
		if err := refused(scope, verdict); err != nil {
			return err
		}
		unknown := later(fmt.Sprintf("%s are not known on this gateway: nothing asked for them before the link went down", scope))
		if !online {
			return unknown
		}
		select {
		case <-moved:
		case <-deadline.C:
			return later(fmt.Sprintf("%s are not complete on this gateway yet", scope))
		case <-ctx.Done():
			return unknown
		}
	}
}

func otherVersion(scope wire.Scope, kind wire.ScopeKind) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "list", schema.GroupResource{Group: scope.Group, Resource: scope.Resource}, "",
		fmt.Sprintf("this gateway holds %s in version %s", scope.Resource, kind.Version), 0, false)
}

// refused says no in Kubernetes' words; nil if the cloud has not said no.
func refused(scope wire.Scope, v wire.ScopeVerdict) error {
	gr := schema.GroupResource{Group: scope.Group, Resource: scope.Resource}
	switch v.Reason {
	case "", wire.ScopeUnjudged:
		return nil
	case wire.ScopeForbidden, wire.ScopeForeign:
		return apierrors.NewForbidden(gr, "", errors.New(v.Message))
	case wire.ScopeNotServed:
		return apierrors.NewGenericServerResponse(http.StatusNotFound, "list", gr, "", v.Message, 0, false)
	default:
		return apierrors.NewMethodNotSupported(gr, "watch")
	}
}

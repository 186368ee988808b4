// Package demand tracks which scopes programs of this gateway follow, asks the cloud for them, and waits until they are complete.
package demand

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
	"github.com/frond-edge/frond/leaf/localapi/records"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/store"
)

const (
	// defaultScopeGrace is how long a scope is kept after its last list or watch ended: a pod that is updated comes back
	// within it, and a job that lists now and then does not make the cloud send everything again each time.
	defaultScopeGrace = 10 * time.Minute
	// scopeWait is how long a first list waits for its scope to be complete. A client waits as long for an apiserver.
	scopeWait = 15 * time.Second
	// refusalMaxAge is how long the cloud's refusal is returned without asking again.
	refusalMaxAge = 10 * time.Second
	// maxUserScopes limits the scopes of one user, so that others get their part of wire.MaxScopes, and of the 64 that the
	// cloud grants a node.
	maxUserScopes = 32
	// wantResource is the resource name of the wanted scopes in the store, so that a gateway that boots offline still answers them.
	wantResource      = "wants"
	scopeMarkResource = "scopes"
)

// Tracker tracks the scopes that programs of this gateway follow, beyond the objects that every gateway is sent. It
// requests them from the cloud; the cloud's markers show when the store holds a scope completely.
type Tracker struct {
	store *store.Store
	grace time.Duration
	log   *zap.Logger

	mu           sync.Mutex // guards all fields below
	wants        map[wire.Scope]map[string]*scopeInterest
	verdicts     map[verdictKey]wire.ScopeVerdict
	verdictsAt   time.Time     // when verdicts arrived
	services     serviceDemand // whether the cloud may send Services by need
	wantsChanged chan struct{} // closed and replaced when wants changes
	stateChanged chan struct{} // closed and replaced when a marker or a verdict changes
}

// scopeInterest is one user's interest in one scope.
type scopeInterest struct {
	active    int // running lists and watches
	idleSince time.Time
}

type verdictKey struct {
	wire.Scope
	user string
}

// scopeWantRecord is the stored form.
type scopeWantRecord struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Want wire.ScopeWant `json:"want"`
}

// New reads the scopes that were wanted before a restart.
func New(st *store.Store, grace time.Duration, log *zap.Logger) *Tracker {
	s := &Tracker{
		store: st, grace: cmp.Or(grace, defaultScopeGrace), log: log,
		wants: map[wire.Scope]map[string]*scopeInterest{}, verdicts: map[verdictKey]wire.ScopeVerdict{},
		wantsChanged: make(chan struct{}), stateChanged: make(chan struct{}),
	}
	s.services = newServiceDemand(st)
	entries, _ := st.List(records.Group, wantResource, "")
	for _, e := range entries {
		var record scopeWantRecord
		if err := json.Unmarshal(e.Object, &record); err != nil || record.Want.Validate() != nil {
			log.Warn("unreadable wish ignored", zap.Stringer("key", e.Key), zap.Error(err))
			continue
		}
		users := map[string]*scopeInterest{}
		for _, u := range record.Want.Users {
			users[u] = &scopeInterest{idleSince: time.Now()} // a reboot ends no interest: its idle time starts again
		}
		s.wants[record.Want.Scope] = users
	}
	return s
}

func scopeWantKey(s wire.Scope) wire.Key {
	key := s.Marker()
	key.Resource, key.Name = wantResource, s.Version+"."+key.Name
	return key
}

// Wanted returns all scopes that programs of this gateway want to follow, each once with all its users, and a channel that
// is closed at the next change after this call.
func (s *Tracker) Wanted() (wants []wire.ScopeWant, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for scope, users := range s.wants {
		wants = append(wants, wire.ScopeWant{Scope: scope, Users: slices.Sorted(maps.Keys(users))})
	}
	slices.SortFunc(wants, func(a, b wire.ScopeWant) int { return cmp.Compare(a.String(), b.String()) })
	return wants, s.wantsChanged
}

// Count returns the number of scopes that are wanted.
func (s *Tracker) Count() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(len(s.wants))
}

// SetVerdicts takes the cloud's verdicts on the scopes of Wanted. It does not block.
func (s *Tracker) SetVerdicts(verdicts []wire.ScopeVerdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.verdicts)
	s.verdictsAt = time.Now()
	for _, v := range verdicts {
		s.verdicts[verdictKey{v.Scope, v.User}] = v
	}
	s.notifyWaiters()
}

// notifyWaiters wakes the requests that wait for a scope. The caller holds mu.
func (s *Tracker) notifyWaiters() {
	close(s.stateChanged)
	s.stateChanged = make(chan struct{})
}

// Acquire keeps a scope wanted for a user until release, and for the grace period after it.
func (s *Tracker) Acquire(ctx context.Context, scope wire.Scope, user string) (release func(), err error) {
	s.mu.Lock()
	users := s.wants[scope]
	if users == nil {
		if len(s.wants) >= wire.MaxScopes {
			s.mu.Unlock()
			return nil, apierrors.NewTooManyRequests(fmt.Sprintf("the programs of this gateway follow %d kinds already", wire.MaxScopes), respond.RetryAfterSeconds)
		}
		users = map[string]*scopeInterest{}
		s.wants[scope] = users
	}
	i := users[user]
	fresh := i == nil
	_, free := wire.ServiceScope(scope) // without a limit of their own, as long as every gateway had all of these
	if fresh && !free && s.countUserScopes(user) >= maxUserScopes {
		if len(users) == 0 {
			delete(s.wants, scope)
		}
		s.mu.Unlock()
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%s follows %d kinds already", user, maxUserScopes), respond.RetryAfterSeconds)
	}
	if fresh && len(users) >= wire.MaxScopeUsers {
		s.mu.Unlock()
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d users of this gateway follow %s already", wire.MaxScopeUsers, scope), respond.RetryAfterSeconds)
	}
	if fresh {
		i = &scopeInterest{}
		users[user] = i
		close(s.wantsChanged)
		s.wantsChanged = make(chan struct{})
	}
	i.active++
	// The cloud is asked again about an old refusal: this caller's roles, which were checked just now, may be newer.
	if v := (verdictKey{scope, user}); s.verdicts[v].Reason != "" && time.Since(s.verdictsAt) > refusalMaxAge {
		delete(s.verdicts, v)
		close(s.wantsChanged)
		s.wantsChanged = make(chan struct{})
	}
	s.mu.Unlock()
	if fresh {
		s.saveScopeUsers(ctx, scope)
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		i.active--
		i.idleSince = time.Now()
	}), nil
}

// countUserScopes returns the number of scopes that a user wants. The caller holds mu.
func (s *Tracker) countUserScopes(user string) int {
	n := 0
	for scope, users := range s.wants {
		if _, free := wire.ServiceScope(scope); !free && users[user] != nil {
			n++
		}
	}
	return n
}

// saveScopeUsers stores the users that want a scope. If the write fails, the scope stays wanted until the process ends.
func (s *Tracker) saveScopeUsers(ctx context.Context, scope wire.Scope) {
	s.mu.Lock()
	users := slices.Sorted(maps.Keys(s.wants[scope]))
	s.mu.Unlock()
	key := scopeWantKey(scope)
	var err error
	if len(users) == 0 {
		if _, err = s.store.Delete(ctx, key, "", nil); errors.Is(err, store.ErrNotFound) {
			err = nil
		}
	} else {
		record := scopeWantRecord{Want: wire.ScopeWant{Scope: scope, Users: users}}
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

// dropExpired drops scopes that were unused for the grace period, and returns the time until the next one may expire.
func (s *Tracker) dropExpired(ctx context.Context) time.Duration {
	next := s.grace
	var dropped []wire.Scope
	s.mu.Lock()
	for scope, users := range s.wants {
		before := len(users)
		maps.DeleteFunc(users, func(_ string, i *scopeInterest) bool {
			left := s.grace - time.Since(i.idleSince)
			if i.active == 0 && left > 0 {
				next = min(next, left)
			}
			return i.active == 0 && left <= 0
		})
		if len(users) == 0 {
			delete(s.wants, scope)
		}
		if len(users) != before {
			dropped = append(dropped, scope)
		}
	}
	begun, left := s.services.advance(s.grace)
	if left > 0 {
		next = min(next, left)
	}
	if len(dropped) > 0 || begun {
		close(s.wantsChanged)
		s.wantsChanged = make(chan struct{})
	}
	s.mu.Unlock()
	for _, scope := range dropped {
		s.saveScopeUsers(ctx, scope)
	}
	s.saveServicesByNeed(ctx)
	return next
}

// Run follows the markers and drops unused scopes, until ctx ends.
func (s *Tracker) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		marks, err := s.store.Watch(records.Group, scopeMarkResource, "", s.store.Revision())
		if err != nil {
			continue // the revision has advanced meanwhile
		}
		s.mu.Lock()
		s.notifyWaiters() // changes between two watches
		s.mu.Unlock()
		for err == nil {
			until, cancel := context.WithTimeout(ctx, s.dropExpired(ctx))
			_, err = marks.Next(until)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				err = nil
				continue
			}
			s.mu.Lock()
			s.notifyWaiters()
			s.mu.Unlock()
		}
		marks.Stop()
	}
	return nil
}

// Complete returns the cloud's description of a scope if the store holds it completely, in its namespace or in all, and the store's
// revision since which it does.
func (s *Tracker) Complete(scope wire.Scope) (kind wire.ScopeKind, since uint64, ok bool) {
	for _, namespace := range slices.Compact([]string{scope.Namespace, ""}) {
		scope.Namespace = namespace
		entry, err := s.store.Get(scope.Marker())
		if err != nil {
			continue
		}
		var mark wire.ScopeMark
		if json.Unmarshal(entry.Object, &mark) == nil {
			return mark.Spec, entry.Revision, true
		}
	}
	return wire.ScopeKind{}, 0, false
}

// WaitComplete waits until the store holds a scope completely. Its error is a status with the reason: refused by the cloud,
// or, a 503, not known yet. A scope that is held completely was granted, and the caller's roles were checked before.
func (s *Tracker) WaitComplete(ctx context.Context, scope wire.Scope, user string, online bool) error {
	deadline := time.NewTimer(scopeWait)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		moved, verdict := s.stateChanged, s.verdicts[verdictKey{scope, user}]
		s.mu.Unlock()
		if kind, _, ok := s.Complete(scope); ok {
			if kind.Version != scope.Version {
				return versionMismatch(scope, kind)
			}
			return nil
		}
		if err := verdictError(scope, verdict); err != nil {
			return err
		}
		unknown := respond.RetryLater(fmt.Sprintf("%s are not known on this gateway: nothing asked for them before the link went down", scope))
		if !online {
			return unknown
		}
		select {
		case <-moved:
		case <-deadline.C:
			return respond.RetryLater(fmt.Sprintf("%s are not complete on this gateway yet", scope))
		case <-ctx.Done():
			return unknown
		}
	}
}

func versionMismatch(scope wire.Scope, kind wire.ScopeKind) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "list", schema.GroupResource{Group: scope.Group, Resource: scope.Resource}, "",
		fmt.Sprintf("this gateway holds %s in version %s", scope.Resource, kind.Version), 0, false)
}

// verdictError returns a refusal in Kubernetes' words; nil if the cloud has not refused.
func verdictError(scope wire.Scope, v wire.ScopeVerdict) error {
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

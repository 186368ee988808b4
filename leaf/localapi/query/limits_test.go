package query

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/limit"
	"github.com/frond-edge/frond/leaf/localapi/objectstore"
	"github.com/frond-edge/frond/leaf/store"
)

// podContext returns the context of a pod's request.
func podContext(t *testing.T, pod string) context.Context {
	t.Helper()
	return caller.With(t.Context(), caller.Caller{Kind: caller.Account, User: &user.DefaultInfo{
		Name: "system:serviceaccount:default:robot", Extra: map[string][]string{serviceaccount.PodUIDKey: {pod}},
	}})
}

// TestPages_ExpireAndAreLimited: the rest of a list expires, and a caller that begins many lists loses only its own.
func TestPages_ExpireAndAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resource, p := &kinds.Resource{}, &pages{}
		keep := func(ctx context.Context) string {
			return p.save(continuation{owner: ownerOf(ctx), resource: resource, items: make([]runtime.Object, 1)})
		}
		held := func(ctx context.Context, token string) bool {
			_, ok := p.load(token, ownerOf(ctx), resource, "")
			return ok
		}
		web, greedy := podContext(t, "web"), podContext(t, "greedy")
		node, mine := keep(t.Context()), keep(web)
		var many []string
		for range 40 {
			many = append(many, keep(greedy))
		}
		if !held(web, mine) || !held(t.Context(), node) {
			t.Error("the rest of another's list is gone")
		}
		if held(greedy, many[37]) || !held(greedy, many[38]) || !held(greedy, many[39]) {
			t.Error("not the last two lists are kept")
		}
		if held(greedy, mine) {
			t.Error("another's token is good")
		}
		for i := range 40 {
			keep(podContext(t, fmt.Sprint("pod-", i)))
		}
		if !held(web, mine) || keep(podContext(t, "late")) != "" || keep(t.Context()) == "" || len(p.pending) > 2*maxContinuations {
			t.Errorf("with many callers, %d are kept", len(p.pending))
		}
		time.Sleep(continuationTTL) //nolint:forbidigo // of synctest's clock
		if held(web, mine) || len(p.pending) != 0 {
			t.Errorf("after a while, %d are kept", len(p.pending))
		}
	})
}

// emptyStore is a store without objects.
type emptyStore struct{ objectstore.Store }

func (emptyStore) List(string, string, string) ([]store.Entry, uint64) { return nil, 1 }

// TestResourceReader_LimitsConcurrentLists: programs make a limited number of lists at once, a client that does not wait gets an
// error, and the node does not wait.
func TestResourceReader_LimitsConcurrentLists(t *testing.T) {
	limits := limit.New()
	r := (&Readers{limits: limits}).ForNode(&kinds.Resource{Placement: kinds.InMemory}, emptyStore{})
	var leave []func()
	for range limit.MaxConcurrentLists {
		done, err := limits.AdmitList(podContext(t, "web"))
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, done)
	}
	ctx, cancel := context.WithTimeout(podContext(t, "other"), 10*time.Millisecond)
	defer cancel()
	if _, _, err := r.listMatching(ctx, &kinds.Filter{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("one more: %v", err)
	}
	if _, _, err := r.listMatching(t.Context(), &kinds.Filter{}); err != nil {
		t.Errorf("the node's: %v", err)
	}
	leave[0]()
	for range 2 { // each list frees its slot
		if _, _, err := r.listMatching(podContext(t, "other"), &kinds.Filter{}); err != nil {
			t.Errorf("after one has ended: %v", err)
		}
	}
}

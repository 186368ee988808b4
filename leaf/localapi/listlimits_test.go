package localapi

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

	"github.com/frond-edge/frond/leaf/store"
)

// as is a request of a pod.
func as(t *testing.T, pod string) context.Context {
	t.Helper()
	return asCaller(t.Context(), caller{kind: account, user: &user.DefaultInfo{
		Name: "system:serviceaccount:default:robot", Extra: map[string][]string{serviceaccount.PodUIDKey: {pod}},
	}})
}

// TestHalfReadLists: the rest of a list goes after a while, and nobody else's is lost to one who begins many.
func TestHalfReadLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{r: &resource{}}
		p := &pages{}
		keep := func(ctx context.Context) string {
			return p.keep(remainder{owner: ownerOf(ctx), resource: e.r, items: make([]runtime.Object, 1)})
		}
		held := func(ctx context.Context, token string) bool {
			_, ok := p.take(token, ownerOf(ctx), e, "")
			return ok
		}
		web, greedy := as(t, "web"), as(t, "greedy")
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
			keep(as(t, fmt.Sprint("pod-", i)))
		}
		if !held(web, mine) || keep(as(t, "late")) != "" || keep(t.Context()) == "" || len(p.begun) > 2*maxPaged {
			t.Errorf("with many callers, %d are kept", len(p.begun))
		}
		time.Sleep(pageKept) //nolint:forbidigo // of synctest's clock
		if held(web, mine) || len(p.begun) != 0 {
			t.Errorf("after a while, %d are kept", len(p.begun))
		}
	})
}

// empty is a store with nothing in it.
type empty struct{ objects }

func (empty) List(string, string, string) ([]store.Entry, uint64) { return nil, 1 }

// TestListsWaitForEachOther: programs make only so many lists at once, a client that does not wait gets an error, and the node
// does not wait.
func TestListsWaitForEachOther(t *testing.T) {
	e := &endpoint{s: &Server{reading: make(chan struct{}, maxReading)}, r: &resource{home: inMemory}, objects: empty{}}
	var leave []func()
	for range maxReading {
		done, err := e.s.read(as(t, "web"))
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, done)
	}
	ctx, cancel := context.WithTimeout(as(t, "other"), 10*time.Millisecond)
	defer cancel()
	if _, _, err := e.snapshot(ctx, &filter{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("one more: %v", err)
	}
	if _, _, err := e.snapshot(t.Context(), &filter{}); err != nil {
		t.Errorf("the node's: %v", err)
	}
	leave[0]()
	if _, _, err := e.snapshot(as(t, "other"), &filter{}); err != nil || len(e.s.reading) != maxReading-1 {
		t.Errorf("after one has ended: %v, %d are read", err, len(e.s.reading))
	}
}

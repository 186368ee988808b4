package splice_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/internal/splice"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

// pipeEnd is one end of a connection whose directions end separately. It implements the part of net.Conn that Join uses.
type pipeEnd struct {
	net.Conn
	in  *io.PipeReader
	out *io.PipeWriter

	mu    sync.Mutex
	reset string // guarded by mu
}

func pipePair() (*pipeEnd, *pipeEnd) {
	ar, bw := io.Pipe()
	br, aw := io.Pipe()
	return &pipeEnd{in: ar, out: aw}, &pipeEnd{in: br, out: bw}
}

func (e *pipeEnd) Read(p []byte) (int, error)  { return e.in.Read(p) }
func (e *pipeEnd) Write(p []byte) (int, error) { return e.out.Write(p) }
func (e *pipeEnd) CloseWrite() error           { return e.out.Close() }
func (e *pipeEnd) Close() error                { return errors.Join(e.in.Close(), e.out.Close()) }

func (e *pipeEnd) Reset(reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reset = reason
	_ = e.out.CloseWithError(errors.New(reason))
}

// startJoin runs Join between the far ends of two connections and returns the near ones.
func startJoin() (left, right *pipeEnd, result <-chan splice.Result) {
	left, a := pipePair()
	b, right := pipePair()
	done := make(chan splice.Result, 1)
	go func() { done <- splice.Join(a, b) }()
	return left, right, done
}

func TestJoin_DirectionsEndSeparately(t *testing.T) {
	left, right, result := startJoin()
	asked := make(chan string, 1)
	go func() {
		question, _ := io.ReadAll(right) // until left has sent everything
		asked <- string(question)
		_, _ = io.WriteString(right, strings.Repeat("answer", 1000))
		_ = right.CloseWrite()
	}()
	if _, err := io.WriteString(left, "question"); err != nil {
		t.Fatal(err)
	}
	if err := left.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(left)
	if err != nil || len(answer) != 6000 || <-asked != "question" {
		t.Errorf("%d bytes of answer, %v", len(answer), err)
	}
	if r := <-result; r.Err != nil || r.Sent != 8 || r.Received != 6000 {
		t.Errorf("result %+v", r)
	}
}

func TestJoin_FailureReachesTheOtherSide(t *testing.T) {
	left, right, result := startJoin()
	_ = left.out.CloseWithError(errors.New("the link is gone"))
	if _, err := io.ReadAll(right); err == nil || err.Error() != "the link is gone" {
		t.Errorf("the other side reads: %v", err)
	}
	if r := <-result; r.Err == nil {
		t.Error("no error")
	}
}

func TestJoin_WithoutHalfCloseEndsBoth(t *testing.T) {
	left, a := net.Pipe()
	b, right := net.Pipe()
	done := make(chan splice.Result, 1)
	go func() { done <- splice.Join(a, b) }()
	_ = left.Close() // everything is sent
	if _, err := io.ReadAll(right); err != nil {
		t.Errorf("the other side reads: %v", err)
	}
	if r := <-done; r.Err != nil {
		t.Errorf("result %+v", r)
	}
}

func TestJoin_LingerTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left, right, result := startJoin()
		began := time.Now()
		if err := left.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if r := <-result; !errors.Is(r.Err, splice.ErrLinger) || time.Since(began) > time.Minute {
			t.Errorf("result %+v after %s", r, time.Since(began))
		}
		if _, err := right.Write([]byte("more")); err == nil {
			t.Error("the side that went on still can")
		}
	})
}

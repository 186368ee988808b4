package stream_test

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/frond-edge/frond/streams/tunnel/protocol"
	"github.com/frond-edge/frond/streams/tunnel/stream"
)

// recordedFrame is a frame that a recorder was given.
type recordedFrame struct {
	reply string
	frame protocol.Frame
}

// recorder is a Publisher that records frames, until it fails.
type recorder struct {
	mu     sync.Mutex
	frames []recordedFrame
	err    error
}

func (r *recorder) PublishFrame(_, reply string, f protocol.Frame) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.frames = append(r.frames, recordedFrame{reply, f})
	}
	return r.err
}

// newEnd returns one end of a stream that was granted credit bytes.
func newEnd(t *testing.T, credit uint32) (*stream.Sender, *stream.Receiver, *stream.Transmitter, *recorder) {
	t.Helper()
	s, r, out := stream.NewSender(1<<20), stream.NewReceiver(100, 400, nil, time.Now()), &recorder{}
	if why := s.Acknowledge(protocol.Frame{Window: credit}); why != nil {
		t.Fatal(why)
	}
	return s, r, stream.NewTransmitter(out, "down", "up", s, r), out
}

func TestReceiver_RefusesInvalidFrames(t *testing.T) {
	for name, tt := range map[string]struct {
		second protocol.Frame
		code   protocol.Code
	}{
		"gap":            {protocol.Frame{Offset: 5}, protocol.CodeLost},
		"repetition":     {protocol.Frame{Offset: 0, Payload: []byte("four")}, protocol.CodeLost},
		"over the grant": {protocol.Frame{Offset: 4, Payload: make([]byte, 97)}, protocol.CodeOverrun},
	} {
		_, r, _, _ := newEnd(t, 0)
		r.Grant()
		if why := r.Accept(protocol.Frame{Payload: []byte("four")}, time.Now()); why != nil {
			t.Fatal(why)
		}
		if why := r.Accept(tt.second, time.Now()); why == nil || why.Code != tt.code {
			t.Errorf("%s: %v, want %s", name, why, tt.code)
		}
	}
}

// Received bytes are read before the end, and before the reason why the stream broke; a deadline and Close come first.
func TestReceiver_OrderOfErrors(t *testing.T) {
	buf := make([]byte, 10)
	_, r, _, _ := newEnd(t, 0)
	r.Grant()
	_ = r.Accept(protocol.Frame{Payload: []byte("last"), Flags: protocol.FlagFin}, time.Now())
	if why := r.Accept(protocol.Frame{Offset: 4, Payload: []byte("x")}, time.Now()); why == nil || why.Code != protocol.CodeProtocol {
		t.Errorf("data after the end: %v", why)
	}
	if n, _, err := r.Read(buf); string(buf[:n]) != "last" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	if _, _, err := r.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	r.Break(io.ErrNoProgress)
	if _, err := r.Next(); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("broken: %v", err)
	}
	_ = r.SetDeadline(time.Now())
	if _, err := r.Next(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	r.Close()
	if _, err := r.Next(); !errors.Is(err, net.ErrClosed) || !errors.Is(r.SetDeadline(time.Time{}), net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// Credit is granted again once half a window was read.
func TestReceiver_CreditDueAfterHalfTheWindow(t *testing.T) {
	_, r, _, _ := newEnd(t, 0)
	r.Grant()
	_ = r.Accept(protocol.Frame{Payload: make([]byte, 100)}, time.Now())
	if _, due, _ := r.Read(make([]byte, 49)); due {
		t.Error("49 of 100 bytes are less than half")
	}
	if _, due, _ := r.Read(make([]byte, 1)); !due || !r.CreditDue() {
		t.Error("no credit after half the window")
	}
	if consumed, window := r.Grant(); consumed != 50 || window != 100 || r.CreditDue() {
		t.Errorf("granted %d after %d", window, consumed)
	}
}

// A window takes its growth from both pools, and gives it back.
func TestPool_ParentLimitsGrowth(t *testing.T) {
	all := stream.NewPool(10, nil)
	one, other := stream.NewPool(8, all), stream.NewPool(8, all)
	if one.Reserve(9) || !one.Reserve(8) || other.Reserve(8) || !other.Reserve(2) {
		t.Error("reserved more or less than there is")
	}
	one.Release(8)
	if !other.Reserve(6) || other.Reserve(1) {
		t.Error("what was released is not what can be reserved")
	}
}

func TestSender_WaitsForTurnAndCredit(t *testing.T) {
	s, _, out, sent := newEnd(t, 3)
	if err := s.BeginWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := out.Send([]byte("four"), 0); n != 3 || err != nil {
		t.Errorf("sent %d, %v with a credit of 3", n, err)
	}
	waiting := make(chan error, 1)
	go func() { waiting <- s.AwaitCredit() }()
	if why := s.Acknowledge(protocol.Frame{Consumed: 4}); why == nil || why.Code != protocol.CodeProtocol {
		t.Errorf("acknowledged what was not sent: %v", why)
	}
	_ = s.Acknowledge(protocol.Frame{Consumed: 3, Window: 1})
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	go func() { waiting <- s.BeginWrite() }()
	s.EndWrite()
	if err := <-waiting; err != nil {
		t.Errorf("next turn: %v", err)
	}
	_ = s.Acknowledge(protocol.Frame{Flags: protocol.FlagClosed})
	if _, err := out.Send([]byte("x"), 0); !errors.Is(err, stream.ErrClosedByPeer) || !s.PeerClosed() {
		t.Errorf("sent to a closed peer: %v", err)
	}
	if len(sent.frames) != 1 || sent.frames[0].reply != "up" || sent.frames[0].frame.Window != 100 {
		t.Errorf("sent %+v", sent.frames)
	}
}

// After CloseWrite each frame repeats the end; after Close one more frame is sent.
func TestTransmitter_FinIsRepeatedAndCloseIsLast(t *testing.T) {
	s, _, out, sent := newEnd(t, 10)
	_, _ = out.Send(nil, protocol.FlagFin)
	if _, err := out.Send([]byte("x"), 0); !errors.Is(err, stream.ErrFinished) {
		t.Errorf("sent after the end: %v", err)
	}
	if err := out.KeepAlive(time.Now().Add(time.Hour), time.Second); err != nil {
		t.Error(err)
	}
	s.Close()
	if _, err := out.Send(nil, 0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("sent after Close: %v", err)
	}
	if _, err := out.Send(nil, protocol.FlagFin|protocol.FlagClosed); err != nil {
		t.Error(err)
	}
	for i, flags := range []byte{protocol.FlagFin, protocol.FlagFin, protocol.FlagFin | protocol.FlagClosed} {
		if len(sent.frames) != 3 || sent.frames[i].frame.Flags != flags {
			t.Fatalf("sent %+v", sent.frames)
		}
	}
}

// Nothing is kept alive before the first frame, and nothing is sent for credit that is no longer due.
func TestTransmitter_KeepAliveAndCreditOnlyWhenDue(t *testing.T) {
	_, _, out, sent := newEnd(t, 0)
	later := time.Now().Add(time.Hour)
	_ = out.KeepAlive(later, time.Second)
	if err := out.SendFirst(protocol.Frame{Kind: protocol.KindAccept}); err != nil {
		t.Fatal(err)
	}
	_ = out.SendCredit()
	_ = out.KeepAlive(time.Now(), time.Minute)
	_ = out.KeepAlive(later, time.Minute)
	if len(sent.frames) != 2 || sent.frames[0].reply != "" || sent.frames[1].frame.Kind != protocol.KindData {
		t.Errorf("sent %+v", sent.frames)
	}
	sent.err = io.ErrClosedPipe
	if _, err := out.Send(nil, 0); !errors.Is(err, io.ErrClosedPipe) || !errors.As(err, new(*stream.PublishError)) {
		t.Errorf("publisher failed: %v", err)
	}
}

func TestState_EndsOnce(t *testing.T) {
	open := stream.NewState()
	if err := open.Open(time.Now()); err != nil || open.Status().Pending() {
		t.Errorf("open: %v", err)
	}
	<-open.Answered()
	if err := open.Open(time.Now()); !errors.Is(err, stream.ErrOpened) {
		t.Errorf("second Open: %v", err)
	}
	if open.Close() != nil || !errors.Is(open.Close(), net.ErrClosed) || open.Break(io.EOF) || !open.Status().Opened() {
		t.Error("a closed stream was closed again, or broken")
	}
	refused := stream.NewState()
	if !refused.Break(io.ErrNoProgress) || refused.Break(io.EOF) {
		t.Error("broken twice, or never")
	}
	<-refused.Answered()
	if err := refused.Open(time.Now()); !errors.Is(err, io.ErrNoProgress) || refused.Status().Opened() {
		t.Errorf("opened a broken stream: %v", err)
	}
}

package stream

import (
	"sync"
	"time"

	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

// probeSpacing is the least time between frames with a reply subject: for such a frame the sender's server answers "no responders" if
// there is no subscriber, long before PeerTimeout. Every frame could have one, but the subject is 50 bytes.
const probeSpacing = time.Second

// Publisher passes a frame to the peer. reply is "" if no answer is wanted. It keeps no part of the frame.
type Publisher interface {
	PublishFrame(subject, reply string, f protocol.Frame) error
}

// PublishError reports that the Publisher did not take a frame.
type PublishError struct{ Err error }

func (e *PublishError) Error() string { return e.Err.Error() }

// Unwrap returns the Publisher's error.
func (e *PublishError) Unwrap() error { return e.Err }

// Transmitter orders the frames of one end of a stream. An error of its methods is a *PublishError, or says why nothing may be sent.
type Transmitter struct {
	publisher      Publisher
	subject, reply string
	sender         *Sender
	receiver       *Receiver

	mu        sync.Mutex // guards all below; held while a frame is passed to the Publisher, which makes the order
	lastSent  time.Time  // zero: the stream's first frame was not sent yet
	lastProbe time.Time  // the last frame with the reply subject
}

// NewTransmitter returns a Transmitter for the frames of a sender with the credit of a receiver.
func NewTransmitter(publisher Publisher, subject, reply string, sender *Sender, receiver *Receiver) *Transmitter {
	return &Transmitter{publisher: publisher, subject: subject, reply: reply, sender: sender, receiver: receiver}
}

// SendFirst sends the frame that opens or accepts the stream.
func (t *Transmitter) SendFirst(f protocol.Frame) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastSent = time.Now()
	reply := ""
	if f.Kind.OpensStream() {
		t.lastProbe, reply = t.lastSent, t.reply
	}
	return t.publish(reply, f)
}

// Send sends one frame with flags and as much of p as the peer's credit and a frame hold. It returns the number of bytes of p sent.
func (t *Transmitter) Send(p []byte, flags byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sendNext(p, flags, time.Now())
}

// SendCredit sends an empty frame, if there is still credit to grant when its turn comes.
func (t *Transmitter) SendCredit() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.receiver.CreditDue() {
		return nil
	}
	_, err := t.sendNext(nil, 0, time.Now())
	return err
}

// KeepAlive sends an empty frame, if none was sent for an interval.
func (t *Transmitter) KeepAlive(now time.Time, interval time.Duration) error {
	if !t.mu.TryLock() {
		return nil // the holder of the lock is about to send
	}
	defer t.mu.Unlock()
	if t.lastSent.IsZero() || now.Sub(t.lastSent) < interval {
		return nil
	}
	_, err := t.sendNext(nil, 0, now)
	return err
}

// sendNext sends the sender's next frame. mu is held.
func (t *Transmitter) sendNext(p []byte, flags byte, now time.Time) (int, error) {
	f, err := t.sender.NextFrame(p, flags, now)
	if err != nil {
		return 0, err
	}
	reply := ""
	if now.Sub(t.lastProbe) >= probeSpacing {
		t.lastProbe, reply = now, t.reply
	}
	t.lastSent = now
	return len(f.Payload), t.publish(reply, f)
}

// publish completes a frame with the receiver's numbers and passes it on. mu is held.
func (t *Transmitter) publish(reply string, f protocol.Frame) error {
	f.Consumed, f.Window = t.receiver.Grant()
	if err := t.publisher.PublishFrame(t.subject, reply, f); err != nil {
		return &PublishError{Err: err}
	}
	return nil
}

package relaytest

import (
	"bytes"
	"net"
	"time"
)

// maxDelayed is more pieces than any window holds.
const maxDelayed = 1 << 14

// delayedPiece is bytes and the time at which they arrive.
type delayedPiece struct {
	data []byte
	at   time.Time
}

// delayLine writes to a connection after a delay.
type delayLine struct {
	delay  time.Duration
	pieces chan delayedPiece
}

// delayWrites returns a writer to a connection whose bytes arrive after a delay, and a function that ends it when all have. The writer
// never fails: if the connection does, it is closed, which ends the other direction of the pair.
func delayWrites(to net.Conn, delay time.Duration) (line *delayLine, drain func()) {
	line = &delayLine{delay: delay, pieces: make(chan delayedPiece, maxDelayed)}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for p := range line.pieces {
			<-time.After(time.Until(p.at))
			if _, err := to.Write(p.data); err != nil {
				_ = to.Close()
			}
		}
	}()
	return line, func() {
		close(line.pieces)
		<-drained
	}
}

// Write queues a copy of p.
func (l *delayLine) Write(p []byte) (int, error) {
	l.pieces <- delayedPiece{data: bytes.Clone(p), at: time.Now().Add(l.delay)}
	return len(p), nil
}

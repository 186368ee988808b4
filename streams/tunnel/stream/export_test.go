package stream

import "time"

// Window exports window.
type Window struct{ w window }

// NewWindow returns a Window.
func NewWindow(size, limit int, trip time.Duration) *Window {
	return &Window{window{size: size, limit: limit, roundTrip: trip}}
}

// RecordRead records that n bytes were read, grows the window by the result, and returns the new size.
func (w *Window) RecordRead(n int, now time.Time) int {
	w.w.size += w.w.recordRead(n, now)
	return w.w.size
}

// Queue exports queue.
type Queue struct{ q queue }

// Push adds bytes, Read removes them.
func (q *Queue) Push(p []byte)     { q.q.push(p) }
func (q *Queue) Read(p []byte) int { return q.q.read(p) }
func (q *Queue) Chunks() int       { return len(q.q.chunks) }

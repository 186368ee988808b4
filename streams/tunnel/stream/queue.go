package stream

const (
	// smallPayload is the size up to which payloads are gathered in one buffer, so that single bytes do not cost a message's memory each.
	smallPayload = 1 << 10
	gatherChunk  = 4 << 10
)

// queue holds received bytes that were not read. Its chunks are the messages' own memory.
type queue struct {
	chunks   [][]byte
	ownsLast bool // the last chunk is a buffer of the queue
}

func (q *queue) push(p []byte) {
	last := len(q.chunks) - 1
	switch {
	case len(p) > smallPayload || last < 0:
		q.chunks, q.ownsLast = append(q.chunks, p), false
	case q.ownsLast && cap(q.chunks[last])-len(q.chunks[last]) >= len(p):
		q.chunks[last] = append(q.chunks[last], p...)
	default:
		q.chunks, q.ownsLast = append(q.chunks, append(make([]byte, 0, gatherChunk), p...)), true
	}
}

func (q *queue) empty() bool { return len(q.chunks) == 0 }

// pop removes and returns the first chunk; the queue must not be empty.
func (q *queue) pop() []byte {
	first := q.chunks[0]
	q.chunks[0] = nil
	if q.chunks = q.chunks[1:]; len(q.chunks) == 0 {
		q.chunks, q.ownsLast = nil, false
	}
	return first
}

// read copies bytes into p and removes them.
func (q *queue) read(p []byte) int {
	n := 0
	for n < len(p) && !q.empty() {
		k := copy(p[n:], q.chunks[0])
		n += k
		if k == len(q.chunks[0]) {
			q.pop()
		} else {
			q.chunks[0] = q.chunks[0][k:]
		}
	}
	return n
}

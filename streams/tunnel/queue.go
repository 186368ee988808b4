package tunnel

const (
	// smallPayload payloads are gathered, so that a window of single bytes does not cost a message's memory for each.
	smallPayload = 1 << 10
	gatherChunk  = 4 << 10
)

// queue holds what arrived and was not read. Its chunks are the messages' own memory.
type queue struct {
	chunks   [][]byte
	ownsLast bool // the last chunk is a buffer of ours
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

// pop takes the first chunk off; the queue must not be empty.
func (q *queue) pop() []byte {
	first := q.chunks[0]
	q.chunks[0] = nil
	if q.chunks = q.chunks[1:]; len(q.chunks) == 0 {
		q.chunks, q.ownsLast = nil, false
	}
	return first
}

// read copies into p and takes off what it copied.
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

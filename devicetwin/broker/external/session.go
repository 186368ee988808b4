package external

import (
	"hash/maphash"

	paho "github.com/eclipse/paho.mqtt.golang"
)

// maxRemembered bounds the messages that a session remembers: more than a broker has unacknowledged at a time (mosquitto 20, others up to 1,000), and
// less than the packet ids that there are, so that an id comes round only when its first message is forgotten.
const maxRemembered = 4096

// delivery is one message of a session.
type delivery struct {
	message Message
	// ack acknowledges it over the connection on which it came last; acked: it was called, or there is none.
	ack   func()
	acked bool
}

// packet identifies what a broker sends again: the packet id alone is used for other messages, too.
type packet struct {
	id  uint16
	sum uint64
}

// session remembers what a broker has sent in one session. An acknowledgement may be lost with its connection, so it remembers acknowledged messages
// as well.
type session struct {
	seed     maphash.Seed
	sent     map[packet]*delivery
	order    []packet // oldest first
	position int      // of the oldest in order, when it is full
}

func newSession() *session {
	return &session{seed: maphash.MakeSeed(), sent: map[packet]*delivery{}}
}

func (s *session) packetOf(m paho.Message) packet {
	var h maphash.Hash
	h.SetSeed(s.seed)
	_, _ = h.WriteString(m.Topic()) // a hash never fails
	_ = h.WriteByte(0)
	_, _ = h.Write(m.Payload())
	return packet{id: m.MessageID(), sum: h.Sum64()}
}

// find returns the message that a broker sends again, nil for another one.
func (s *session) find(m paho.Message) *delivery {
	if !m.Duplicate() {
		return nil
	}
	return s.sent[s.packetOf(m)]
}

// add remembers a message, and forgets the oldest.
func (s *session) add(m paho.Message, d *delivery) {
	p := s.packetOf(m)
	s.sent[p] = d
	if len(s.order) < maxRemembered {
		s.order = append(s.order, p)
		return
	}
	if old := s.order[s.position]; old != p {
		delete(s.sent, old)
	}
	s.order[s.position] = p
	s.position = (s.position + 1) % maxRemembered
}

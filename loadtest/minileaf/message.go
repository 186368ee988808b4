package minileaf

import (
	"fmt"
	"strconv"
	"strings"
)

// message is the line before a message of the hub. header is -1 without headers.
type message struct {
	subject, reply string
	header, total  int
}

// parseMessage parses the arguments of LMSG or HMSG: SUBJECT [REPLY | + REPLY QUEUE… | "|" QUEUE…] [HEADER] TOTAL.
func parseMessage(verb, arguments string) (m message, err error) {
	fields := strings.Fields(arguments)
	sizes := 1
	if verb == "HMSG" {
		sizes = 2
	}
	if len(fields) < 1+sizes {
		return m, fmt.Errorf("message line %.120q", arguments)
	}
	names, numbers := fields[:len(fields)-sizes], fields[len(fields)-sizes:]
	m.subject, m.header = names[0], -1
	switch {
	case len(names) > 2 && names[1] == "+": // with a reply and queues
		m.reply = names[2]
	case len(names) == 2: //nolint:mnd // subject and reply
		m.reply = names[1]
	}
	if m.total, err = parseSize(numbers[sizes-1]); err != nil {
		return m, err
	}
	if sizes == 2 { //nolint:mnd // header and total
		if m.header, err = parseSize(numbers[0]); err == nil && m.header > m.total {
			err = fmt.Errorf("message line %.120q", arguments)
		}
	}
	return m, err
}

func parseSize(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxPayload {
		return 0, fmt.Errorf("message of %.20q bytes, at most %d", text, maxPayload)
	}
	return n, nil
}

// ackPrefix begins the reply subject of a message that a JetStream consumer delivers.
const ackPrefix = "$JS.ACK."

// unwrapped returns the message as a leaf gives it to its client: between servers the reply subject of a JetStream consumer's message ends with
// "@" and the message's own subject, and its subject is the one that the consumer delivers to.
func (m message) unwrapped() message {
	if at := strings.LastIndexByte(m.reply, '@'); at > 0 && strings.HasPrefix(m.reply, ackPrefix) {
		m.subject, m.reply = m.reply[at+1:], m.reply[:at]
	}
	return m
}

// deliveryLine is the line before the message in the client protocol.
func (m message) deliveryLine(sid string) string {
	verb, sizes := "MSG", strconv.Itoa(m.total)
	if m.header >= 0 {
		verb, sizes = "HMSG", strconv.Itoa(m.header)+" "+sizes
	}
	reply := ""
	if m.reply != "" {
		reply = m.reply + " "
	}
	return verb + " " + m.subject + " " + sid + " " + reply + sizes + "\r\n"
}

// matches reports whether a subject is one of a pattern with "*" and ">".
func matches(pattern, subject string) bool {
	for {
		want, moreWanted, wantMore := strings.Cut(pattern, ".")
		have, moreHad, haveMore := strings.Cut(subject, ".")
		switch {
		case want == ">":
			return true
		case want != "*" && want != have, wantMore != haveMore:
			return false
		case !wantMore:
			return true
		}
		pattern, subject = moreWanted, moreHad
	}
}

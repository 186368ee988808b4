package streams

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/tunnel"
)

// The accounts of the hub. Streams and cloudcores are in FrondAccount, which has no leaf; nodes are in cells, which have no
// stream. What a leaf costs grows with the leafs and the subscriptions of its account, and what a node can reach ends there
// but for the crossings.
const (
	FrondAccount  = "FROND" // streams, cloudcores, people
	LobbyAccount  = "LOBBY" // who has no valid key, and asks for one
	AuthAccount   = "AUTH"  // the auth callout: the hub asks here whom it lets in
	SystemAccount = "SYS"   // the hub's own: what it says of itself, and kicks
)

// CellAccount is the account of a node on a hub with so many cells. The number is fixed when a hub is installed.
func CellAccount(node string, cells int) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node)) // a hash never fails
	return cellName(int(h.Sum32() % uint32(cells)))
}

// Cells are the accounts of nodes of a hub with so many cells.
func Cells(cells int) []string {
	names := make([]string, cells)
	for i := range names {
		names[i] = cellName(i)
	}
	return names
}

func cellName(i int) string { return fmt.Sprintf("CELL-%03d", i) }

// Crossing is what goes from one account to another, and nothing else does. A message of a stream goes to whoever listens, with
// its reply subject unchanged. A service takes requests to who serves it, and its answers back to the account of who asked: no
// reply subject of a request reaches anything where it is served.
type Crossing struct {
	// From is the account that exports, To the one that imports: messages of a stream go from From to To, requests to a service
	// from To to From.
	From, To string
	Service  bool
	// ManyReplies says that a service answers more than once.
	ManyReplies bool
	// Subject is what it is called in From, Local in To.
	Subject, Local string
}

// The consumer of a node as its cell knows it. There JetStream's own subjects are not used, since every account of a hub
// answers these by itself, and lets every leaf send on $JS.ACK.
const (
	consumerPrefix = "consumer."
	ackPrefix      = "$JS.ACK." + DesiredStream + "."
)

// consumerSubject is what a node asks its own consumer on: next, info or ack.<where>.
func consumerSubject(node, what string) string {
	return consumerPrefix + wire.Escape(node) + "." + what
}

// Crossings are all crossings of a hub with so many cells.
//
// A reply subject is the sender's free choice, and JetStream answers whatever it says. So what JetStream takes from nodes is a
// service: its answers end in the cell of who asked, where nothing is listened to that they could be taken for (orders carry a
// header that no answer has; inboxes and tunnels have names that nobody guesses). What a cloudcore takes is a stream: it sees
// the reply subject as it was sent, answers to the node's own inbox alone, and a leaf knows whether any cloudcore listens.
func Crossings(cells int) []Crossing {
	var all []Crossing
	for _, name := range Cells(cells) {
		all = slices.Concat(all,
			streamCrossings(name, FrondAccount, heartbeatPrefix+"*", callPrefix+"*.*", tunnel.UpSubjects),
			streamCrossings(FrondAccount, name, commandPrefix+"*.*", tunnel.DownSubjects, inboxSubjects),
			serviceCrossings(name, string(Report)+".>", string(Event)+".>", deadLetterPrefix+"*.*"),
			[]Crossing{
				{From: FrondAccount, To: name, Service: true, ManyReplies: true, Subject: "$JS.API.CONSUMER.MSG.NEXT." + DesiredStream + ".*", Local: consumerPrefix + "*.next"},
				{From: FrondAccount, To: name, Service: true, Subject: "$JS.API.CONSUMER.INFO." + DesiredStream + ".*", Local: consumerPrefix + "*.info"},
				{From: FrondAccount, To: name, Service: true, Subject: ackPrefix + "*.>", Local: consumerPrefix + "*.ack.>"},
			},
		)
	}
	return slices.Concat(all,
		streamCrossings(LobbyAccount, FrondAccount, callPrefix+"*."+identity.VerbEnrol, callPrefix+"*."+identity.VerbRenew),
		streamCrossings(FrondAccount, LobbyAccount, inboxSubjects))
}

// inboxSubjects are where answers go.
const inboxSubjects = "_INBOX.>"

// streamCrossings are messages that keep their name.
func streamCrossings(from, to string, subjects ...string) []Crossing {
	all := make([]Crossing, len(subjects))
	for i, subject := range subjects {
		all[i] = Crossing{From: from, To: to, Subject: subject, Local: subject}
	}
	return all
}

// services are what FrondAccount serves under the same name.
func serviceCrossings(to string, subjects ...string) []Crossing {
	all := make([]Crossing, len(subjects))
	for i, subject := range subjects {
		all[i] = Crossing{From: FrondAccount, To: to, Service: true, Subject: subject, Local: subject}
	}
	return all
}

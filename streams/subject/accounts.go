package subject

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

// The accounts of the hub. Streams and cloudcores live in FrondAccount, which has no leafs; nodes live in cell accounts, which have no
// streams. The cost of a leaf grows with the leafs and the subscriptions of its account. A node can reach nothing outside its account
// except through the crossings.
const (
	FrondAccount  = "FROND" // streams, cloudcores, operators
	LobbyAccount  = "LOBBY" // links without a valid key, which request admission
	AuthAccount   = "AUTH"  // the auth callout: the hub asks here whether to admit a connection
	SystemAccount = "SYS"   // the hub's own account: system events and requests to close connections
)

// CellAccount returns the account of a node on a hub with the given number of cells. The number is fixed when a hub is installed.
func CellAccount(node string, cells int) string {
	return cellName(cellOf(node, cells))
}

func cellOf(node string, cells int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node)) // a hash never fails
	return int(h.Sum32() % uint32(cells))
}

// Cells returns the node accounts of a hub with the given number of cells.
func Cells(cells int) []string {
	names := make([]string, cells)
	for i := range names {
		names[i] = cellName(i)
	}
	return names
}

func cellName(i int) string { return fmt.Sprintf("CELL-%03d", i) }

// Crossing is one export from an account and its import into another; no message crosses accounts in any other way. A stream crossing
// delivers messages to the subscribers with the reply subject unchanged. A service crossing takes requests to the responder, and its
// replies back to the requester's account: a request's reply subject reaches nothing in the responder's account.
type Crossing struct {
	// From is the exporting account, To the importing one. Stream messages flow from From to To, service requests from To to From.
	From, To string
	Service  bool
	// ManyReplies says that a service sends more than one reply to a request.
	ManyReplies bool
	// Subject is the name in From, Local the name in To.
	Subject, Local string
}

// The subjects under which a cell reaches a node's consumer. A cell does not use JetStream's own subjects, because every account of a hub
// answers those itself and lets every leaf send on $JS.ACK.
const (
	consumerPrefix = "consumer."
	ackPrefix      = "$JS.ACK."
)

// ConsumerSubject is the subject of a node's requests to its own consumer: next, info or ack.<where>.
func ConsumerSubject(node, what string) string {
	return consumerPrefix + wire.Escape(node) + "." + what
}

// Crossings returns all crossings of a hub.
//
// A sender chooses the reply subject freely, and JetStream replies to any subject it names. So every subject that JetStream serves to
// nodes is a service: its replies end in the requester's cell, where no subscriber can mistake them for something else (commands carry a
// header that no reply has; inboxes and tunnels have names that cannot be guessed). Subjects that cloudcores receive are streams: a
// cloudcore sees the reply subject as it was sent and replies to the node's own inbox only, and a leaf knows whether any cloudcore is
// subscribed.
func Crossings(l Layout) []Crossing {
	var all []Crossing
	for i, name := range Cells(l.Cells) {
		stream := partitionStream(i % l.count()) // as Layout.Partition
		all = slices.Concat(all,
			streamCrossings(name, FrondAccount, HeartbeatPrefix+"*", CallPrefix+"*.*", protocol.UpSubjects),
			streamCrossings(FrondAccount, name, commandPrefix+"*.*", protocol.DownSubjects, inboxSubjects),
			serviceCrossings(name, string(Report)+".>", string(Event)+".>", DeadLetterPrefix+"*.*"),
			[]Crossing{
				{From: FrondAccount, To: name, Service: true, ManyReplies: true, Subject: "$JS.API.CONSUMER.MSG.NEXT." + stream + ".*", Local: consumerPrefix + "*.next"},
				{From: FrondAccount, To: name, Service: true, Subject: "$JS.API.CONSUMER.INFO." + stream + ".*", Local: consumerPrefix + "*.info"},
				{From: FrondAccount, To: name, Service: true, Subject: ackPrefix + stream + ".*.>", Local: consumerPrefix + "*.ack.>"},
			},
		)
	}
	return slices.Concat(all,
		streamCrossings(LobbyAccount, FrondAccount, CallPrefix+"*."+identity.VerbEnrol, CallPrefix+"*."+identity.VerbRenew),
		streamCrossings(FrondAccount, LobbyAccount, inboxSubjects))
}

// inboxSubjects match all reply subjects.
const inboxSubjects = "_INBOX.>"

// streamCrossings returns stream crossings whose subjects have the same name in both accounts.
func streamCrossings(from, to string, subjects ...string) []Crossing {
	all := make([]Crossing, len(subjects))
	for i, subject := range subjects {
		all[i] = Crossing{From: from, To: to, Subject: subject, Local: subject}
	}
	return all
}

// serviceCrossings returns the services of FrondAccount that have the same name in both accounts.
func serviceCrossings(to string, subjects ...string) []Crossing {
	all := make([]Crossing, len(subjects))
	for i, subject := range subjects {
		all[i] = Crossing{From: FrondAccount, To: to, Service: true, Subject: subject, Local: subject}
	}
	return all
}

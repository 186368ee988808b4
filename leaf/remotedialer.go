package leaf

import (
	"fmt"
	"math/rand/v2"

	"github.com/nats-io/nats-server/v2/server"
)

// remoteDialer implements hubLink on the server: it manages the one remote of its configuration.
type remoteDialer struct {
	nats *server.Server
	cfg  Config
	// turn numbers the remotes. Its start value is random, so that gateways that start together spread over the hub's servers.
	turn uint64
}

// maxTurnOffset is more than the number of servers of any hub.
const maxTurnOffset = 1 << 10

func newRemoteDialer(ns *server.Server, cfg Config) *remoteDialer {
	return &remoteDialer{nats: ns, cfg: cfg, turn: rand.Uint64N(maxTurnOffset)}
}

// connection returns the newest link's id, and the name of the hub server at its other end.
func (d *remoteDialer) connection() (id uint64, server string) {
	if d.nats.NumLeafNodes() == 0 {
		return 0, ""
	}
	z, err := d.nats.Leafz(nil)
	if err != nil {
		return 0, ""
	}
	for _, l := range z.Leafs {
		if l.ID > id {
			id, server = l.ID, l.Name
		}
	}
	return id, server
}

// messagesReceived returns how many messages arrived over a link; 0 for one that is gone.
func (d *remoteDialer) messagesReceived(id uint64) int64 {
	z, err := d.nats.Leafz(nil)
	if err != nil {
		return 0
	}
	for _, l := range z.Leafs {
		if l.ID == id {
			return l.InMsgs
		}
	}
	return 0
}

// closeLink closes a link. An error means that it is already gone.
func (d *remoteDialer) closeLink(id uint64) { _ = d.nats.DisconnectClientByID(id) }

// replaceRemote replaces the remote with one to another of the hub's servers, and with the current files. That closes the current link,
// ends the server's own wait, and frees a remote that has stopped dialling (nats-server issue 7615) or that considers a dial in progress
// without end (one that was disabled while the hub's auth callout waited). Disabling and enabling the same remote is impossible with a
// credential anyhow: nats-server compares remotes by DeepEqual, and no function equals another.
func (d *remoteDialer) replaceRemote() error {
	// Any of the others: if all nodes of a dead server moved to the same one, that server would have to accept them all at once.
	d.turn += 1 + rand.Uint64N(max(1, uint64(len(d.cfg.currentHubs()))-1))
	r, err := remoteOptions(d.cfg, d.turn)
	if err != nil {
		return err
	}
	o := serverOptions(d.cfg)
	o.LeafNode.Remotes = []*server.RemoteLeafOpts{r}
	if err := d.nats.ReloadOptions(o); err != nil {
		return fmt.Errorf("replace the remote: %w", err)
	}
	return nil
}

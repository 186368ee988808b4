package leaf

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
)

// dialer is the supervisor's hand on the server: the one remote of its configuration.
type dialer struct {
	nats *server.Server
	cfg  Config
	sec  secrets
	// refused counts redials in a row that the server refused.
	refused int
	// turn makes another remote of the same URLs; see redial.
	turn int
}

// giveUp is how many refused redials show that the server's remote is stuck: each waits 1 s for a dial in progress, and
// a dial lasts 5 s by default.
const giveUp = 8

func newDialer(ns *server.Server, cfg Config, sec secrets) *dialer {
	return &dialer{nats: ns, cfg: cfg, sec: sec}
}

// connection returns the newest link's id.
func (d *dialer) connection() uint64 {
	if d.nats.NumLeafNodes() == 0 {
		return 0
	}
	z, err := d.nats.Leafz(nil)
	if err != nil {
		return 0
	}
	var id uint64
	for _, l := range z.Leafs {
		id = max(id, l.ID)
	}
	return id
}

// received is how many messages came over a link; 0 for one that is gone.
func (d *dialer) received(id uint64) int64 {
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

// drop closes a link. An error means that it is gone already.
func (d *dialer) drop(id uint64) { _ = d.nats.DisconnectClientByID(id) }

// redial disables the remote and enables it again, which ends the server's own waiting and begins with a dial to the
// next URL. That also frees a remote that has stopped dialling (nats-server issue 7615). If the server refuses because
// it believes for too long that a dial is in progress, the remote is replaced by another one with the same URLs.
func (d *dialer) redial() error {
	if d.refused >= giveUp {
		d.refused = 0
		d.turn++
		return d.reload(false)
	}
	err := d.reload(true)
	if err == nil {
		err = d.reload(false)
	}
	if err != nil {
		d.refused++
		return err
	}
	d.refused = 0
	return nil
}

func (d *dialer) reload(disabled bool) error {
	o, err := options(d.cfg, d.sec)
	if err != nil {
		return err
	}
	if len(o.LeafNode.Remotes) == 0 {
		return errors.New("no remote")
	}
	r := o.LeafNode.Remotes[0]
	r.Disabled = disabled
	// The server knows a remote by its list of URLs, in order: one more repetition of the first makes it a new one.
	for range d.turn {
		r.URLs = append(r.URLs, r.URLs[0])
	}
	if err := d.nats.ReloadOptions(o); err != nil {
		return fmt.Errorf("reload remote (disabled %t): %w", disabled, err)
	}
	return nil
}

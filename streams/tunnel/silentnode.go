package tunnel

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
)

// silentTTL is how long a node that did not answer is considered silent: kubectl exec tries again at once with another protocol, possibly
// through another Dialer, and its user should not wait twice.
const silentTTL = 2 * time.Second

// errSilent is the error of dials that share another dial's result.
var errSilent = fmt.Errorf("%w: it did not answer a moment ago", ErrOffline)

// checkSilent returns errSilent if the node was found silent a moment ago, and otherwise a channel that closes when it is.
func (d *Dialer) checkSilent(token string) (<-chan struct{}, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[token]
	switch {
	case p == nil:
		return nil, nil
	case time.Now().Before(p.silentUntil):
		return nil, errSilent
	}
	return p.silent, nil
}

// reportSilent records that a node is silent, for other dials to it, here and at the other Dialers.
func (d *Dialer) reportSilent(p *peer) {
	d.mu.Lock()
	d.markSilent(p)
	d.mu.Unlock()
	// It is a frame, so that a message that a forged reply puts on the subject is not mistaken for one.
	d.queueFrame(silentPrefix+p.token+"."+d.replica, frame{kind: kindReset, payload: reasonPayload(CodeSilent, "")})
}

// markSilent ends the dials that wait for a node. mux.mu is held.
func (d *Dialer) markSilent(p *peer) {
	p.silentUntil = time.Now().Add(silentTTL)
	close(p.silent)
	p.silent = make(chan struct{})
}

// Heard records that a node is alive: the next dial asks it, whatever an earlier one found. It is for news that the Dialer cannot have
// itself, such as a heartbeat.
func (d *Dialer) Heard(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.peers[wire.Escape(node)]; p != nil {
		p.silentUntil = time.Time{}
	}
}

// handleSilentNotice handles the notice of another Dialer, unless the node has been heard here meanwhile.
func (d *Dialer) handleSilentNotice(msg *nats.Msg) {
	token, replica, ok := parseSilent(msg.Subject)
	f, err := parseFrame(msg.Data)
	if !ok || err != nil || f.kind != kindReset {
		d.metrics.countRefused(codeGarbage)
		return
	}
	if replica == d.replica {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[token]
	if p == nil {
		p = newPeer(token)
		d.peers[token] = p
	}
	if heard := time.Unix(0, p.lastReceived.Load()); time.Since(heard) > d.cfg.OpenTimeout {
		d.markSilent(p)
	}
}

package tunnel

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

// errSilent is the error of dials that share another dial's result.
var errSilent = fmt.Errorf("%w: it did not answer a moment ago", ErrOffline)

// checkSilent returns errSilent if the node was found silent a moment ago, and otherwise a channel that closes when it is.
func (d *Dialer) checkSilent(token string) (<-chan struct{}, error) {
	d.mux.mu.Lock()
	defer d.mux.mu.Unlock()
	p := d.mux.peers[token]
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
	d.mux.mu.Lock()
	p.markSilent()
	d.mux.mu.Unlock()
	// It is a frame, so that a message that a forged reply puts on the subject is not mistaken for one.
	d.mux.frames.queueFrame(protocol.SilentPrefix+p.token+"."+d.replica, protocol.Reason{Code: protocol.CodeSilent}.Frame(protocol.KindReset))
}

// Heard records that a node is alive: the next dial asks it, whatever an earlier one found. It is for news that the Dialer cannot have
// itself, such as a heartbeat.
func (d *Dialer) Heard(node string) {
	d.mux.mu.Lock()
	defer d.mux.mu.Unlock()
	if p := d.mux.peers[wire.Escape(node)]; p != nil {
		p.silentUntil = time.Time{}
	}
}

// handleSilentNotice handles the notice of another Dialer, unless the node has been heard here meanwhile.
func (d *Dialer) handleSilentNotice(msg *nats.Msg) {
	token, replica, ok := protocol.ParseSilent(msg.Subject)
	f, err := protocol.ParseFrame(msg.Data)
	if !ok || err != nil || f.Kind != protocol.KindReset {
		d.mux.metrics.countRefused(protocol.CodeGarbage)
		return
	}
	if replica == d.replica {
		return
	}
	d.mux.mu.Lock()
	defer d.mux.mu.Unlock()
	p := d.mux.ensurePeer(token)
	if heard := time.Unix(0, p.lastReceived.Load()); time.Since(heard) > d.mux.cfg.OpenTimeout {
		p.markSilent()
	}
}

// Package gateway changes and reads single gateways of a development cluster: their links, their disks, copies of them, and their stores.
package gateway

import (
	"context"
	"errors"
	"net/http"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/request"
	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// Links cuts and degrades the links of gateways. Faults of a link's quality need a forwarder that sees each gateway separately: the
// hollow runtime.
type Links struct{ f *folder.Folder }

// NewLinks returns the links of a cluster.
func NewLinks(f *folder.Folder) *Links { return &Links{f: f} }

// Cut drops everything between a gateway and the cloud, silently. With loud both ends detect it at once.
func (l *Links) Cut(ctx context.Context, edge string, loud bool) error {
	return l.f.Update(ctx, func() error {
		if err := l.f.CheckGateway(edge); err != nil {
			return err
		}
		return l.CutLocked(ctx, edge, loud)
	})
}

// CutLocked is Cut for a caller that holds the folder's lock.
func (l *Links) CutLocked(ctx context.Context, edge string, loud bool) error {
	if l.f.State.Spec.Runtime == folder.Containerd {
		return l.f.Network().Cut(ctx, edge, loud)
	}
	path := "/links/" + edge + "/cut"
	if loud {
		path += "?loud=1"
	}
	return request.Socket(ctx, l.f.Layout.WanSocket(), http.MethodPost, path, nil)
}

// Heal undoes Cut.
func (l *Links) Heal(ctx context.Context, edge string) error {
	return l.f.Update(ctx, func() error {
		if err := l.f.CheckGateway(edge); err != nil {
			return err
		}
		if l.f.State.Spec.Runtime == folder.Containerd {
			return l.f.Network().Heal(ctx, edge)
		}
		return request.Socket(ctx, l.f.Layout.WanSocket(), http.MethodPost, "/links/"+edge+"/heal", nil)
	})
}

// CutOneWay drops the traffic from the gateway to the cloud with up, else the traffic to the gateway. Heal undoes it.
func (l *Links) CutOneWay(ctx context.Context, edge string, up bool) error {
	only := "down"
	if up {
		only = "up"
	}
	return l.postLinkCommand(ctx, edge, "/links/"+edge+"/cut?only="+only)
}

// Reset breaks a gateway's open connections; new ones are not affected.
func (l *Links) Reset(ctx context.Context, edge string) error {
	return l.postLinkCommand(ctx, edge, "/links/"+edge+"/reset")
}

// Shape degrades a gateway's link; the zero shape restores it.
func (l *Links) Shape(ctx context.Context, edge string, shape wan.Shape) error {
	return l.postLinkCommand(ctx, edge, wan.ShapePath(edge, shape))
}

func (l *Links) postLinkCommand(ctx context.Context, edge, path string) error {
	return l.f.Update(ctx, func() error {
		if err := l.f.CheckGateway(edge); err != nil {
			return err
		}
		if l.f.State.Spec.Runtime != folder.Hollow {
			return errors.New("this fault needs the hollow runtime, whose gateways each have their own way through the forwarder")
		}
		return request.Socket(ctx, l.f.Layout.WanSocket(), http.MethodPost, path, nil)
	})
}

// States returns the state of the gateways' links from the forwarder.
func (l *Links) States(ctx context.Context) (map[string]wan.Link, error) {
	var links map[string]wan.Link
	err := request.Socket(ctx, l.f.Layout.WanSocket(), http.MethodGet, "/links", &links)
	return links, err
}

// StateOf returns the state of a gateway's link. forwarder is the answer of the wan process, nil if it does not answer.
func (l *Links) StateOf(ctx context.Context, edge string, forwarder map[string]wan.Link) wan.State {
	if l.f.State.Spec.Runtime == folder.Containerd {
		return l.f.Network().State(ctx, edge)
	}
	link, ok := forwarder[edge]
	switch {
	case !ok:
		return wan.Unknown
	case link.Cut && link.Loud:
		return wan.Down
	case link.Cut:
		return wan.Cut
	default:
		return wan.Up
	}
}

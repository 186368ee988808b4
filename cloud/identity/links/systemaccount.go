package links

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// leafReplyWait is how long to wait for further servers of the hub after the last reply.
	leafReplyWait = 300 * time.Millisecond
	// kickTimeout bounds one kick.
	kickTimeout = 2 * time.Second
)

// systemAccount uses the hub's system account to list links and to close them.
type systemAccount struct{ nc *nats.Conn }

// hubLeaf is what the hub reports about a link.
type hubLeaf struct {
	// Name is the name that the leaf has chosen.
	Name string
	// Hub says that the leaf has declared itself the hub. The server then silently drops what the other end may not
	// send, and keeps the link. No gateway of ours does that.
	Hub bool
}

// listLeafs lists the links of an account on all servers that answer.
func (s systemAccount) listLeafs(ctx context.Context, account string) (map[linkID]hubLeaf, error) {
	request, err := json.Marshal(map[string]string{"account": account})
	if err != nil {
		return nil, err
	}
	replies, err := gatherReplies(ctx, s.nc, "$SYS.REQ.SERVER.PING.LEAFZ", request, leafReplyWait)
	if err != nil {
		return nil, fmt.Errorf("list the links of %s: %w", account, err)
	}
	links := make(map[linkID]hubLeaf)
	for _, reply := range replies {
		var z struct {
			Server struct {
				ID string `json:"id"`
			} `json:"server"`
			Data struct {
				Leafs []struct {
					ID    uint64 `json:"id"`
					Name  string `json:"name"`
					Spoke bool   `json:"is_spoke"` // the server is the spoke of this leaf
				} `json:"leafs"`
			} `json:"data"`
		}
		if err := json.Unmarshal(reply, &z); err != nil {
			return nil, fmt.Errorf("list the links of %s: %w", account, err)
		}
		for _, l := range z.Data.Leafs {
			links[linkID{Server: z.Server.ID, CID: l.ID}] = hubLeaf{Name: l.Name, Hub: l.Spoke}
		}
	}
	return links, nil
}

// KickClient closes a client's connection to a server of the hub, whose system account sys belongs to. It reports
// whether there was one.
func KickClient(ctx context.Context, sys *nats.Conn, server string, client uint64) (bool, error) {
	return systemAccount{sys}.kickClient(ctx, linkID{Server: server, CID: client})
}

// kickClient closes a link. It reports whether there was one.
func (s systemAccount) kickClient(ctx context.Context, l linkID) (bool, error) {
	request, err := json.Marshal(map[string]uint64{"cid": l.CID})
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, kickTimeout)
	defer cancel()
	// The hub ignores the request without a reply subject.
	msg, err := s.nc.RequestWithContext(ctx, "$SYS.REQ.SERVER."+l.Server+".KICK", request)
	if err != nil {
		return false, fmt.Errorf("close link %d of server %s: %w", l.CID, l.Server, err)
	}
	var reply struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &reply); err != nil {
		return false, fmt.Errorf("close link %d of server %s: %w", l.CID, l.Server, err)
	}
	return reply.Error == nil, nil // an error means that it is gone
}

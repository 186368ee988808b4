package hubtest

import (
	"fmt"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/streams/subject"
)

// AnswerCallout answers the auth callout. nodes maps public nkeys to nodes: a link with such a key gets the node's cell, any other key the
// lobby. It checks the signature, which the hub does not. It answers through one server of the hub until the returned connection is
// closed.
func (h *Hub) AnswerCallout(i int, nodes map[string]string) *nats.Conn {
	h.tb.Helper()
	nc := h.Connect(i, "callout")
	_, err := nc.QueueSubscribe("$SYS.REQ.USER.AUTH", "cloudcore", func(msg *nats.Msg) {
		answer, err := h.authorizationResponse(string(msg.Data), nodes)
		if err != nil {
			h.tb.Logf("callout: %v", err)
			return
		}
		_ = msg.Respond([]byte(answer)) // the requester no longer waits, or asks again
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		h.tb.Fatalf("answer the callout: %v", err)
	}
	return nc
}

func (h *Hub) authorizationResponse(request string, nodes map[string]string) (string, error) {
	asked, err := jwt.DecodeAuthorizationRequestClaims(request)
	if err != nil {
		return "", fmt.Errorf("request: %w", err)
	}
	claims := jwt.NewAuthorizationResponseClaims(asked.UserNkey)
	claims.Audience = asked.Server.ID
	user, err := h.userClaims(asked, nodes)
	if err == nil {
		claims.Jwt, err = user.Encode(h.Issuer)
	}
	if err != nil {
		claims.Error = err.Error()
	}
	return claims.Encode(h.Issuer)
}

func (h *Hub) userClaims(asked *jwt.AuthorizationRequestClaims, nodes map[string]string) (*jwt.UserClaims, error) {
	shown, signature, err := identity.DecodeCredential(asked.ConnectOptions.SignedNonce)
	if err != nil {
		return nil, err
	}
	key, err := nkeys.FromPublicKey(shown.Key)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	if err := key.Verify([]byte(asked.ClientInformation.Nonce), signature); err != nil {
		return nil, fmt.Errorf("signature: %w", err)
	}
	user := jwt.NewUserClaims(asked.UserNkey)
	user.Name, user.Audience = shown.Key, subject.LobbyAccount
	user.AllowedConnectionTypes.Add(jwt.ConnectionTypeLeafnode, jwt.ConnectionTypeLeafnodeWS)
	user.Pub.Allow, user.Sub.Allow = allowLists(subject.LobbyPermissions(shown.Key))
	if node := nodes[shown.Key]; node != "" {
		user.Audience = subject.CellAccount(node, h.Cells)
		user.Pub.Allow, user.Sub.Allow = allowLists(subject.NodePermissions(node))
	}
	return user, nil
}

func allowLists(publish, subscribe []string) (jwt.StringList, jwt.StringList) {
	return publish, subscribe
}

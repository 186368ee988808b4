package leaftest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/test/kit"
)

// The accounts of an AuthHub. Each of its clients is in one of them.
const (
	LobbyAccount = "LOBBY"
	CellAccount  = "CELL"
	authAccount  = "AUTH"
)

// Admission is the account and the subjects that a gateway gets.
type Admission struct {
	Account            string
	Publish, Subscribe []string
}

// AuthHub is a hub whose auth callout asks a test which gateways to admit. It has a leaf listener with TLS 1.3 from the first byte and a
// WebSocket listener.
type AuthHub struct {
	tb   testing.TB
	nats *server.Server
	opts *server.Options
}

// NewAuthHub starts a hub that presents cert. judge receives a gateway's credential after its signature was checked, and returns nil to
// refuse it; the calls are serial.
func NewAuthHub(tb testing.TB, cert func() tls.Certificate, judge func(identity.Credential) *Admission) *AuthHub {
	tb.Helper()
	issuer, err := nkeys.CreateAccount()
	kit.Must(tb, err)
	public, err := issuer.PublicKey()
	kit.Must(tb, err)
	secure := &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		shown := cert()
		return &shown, nil
	}}
	d := &AuthHub{tb: tb, opts: &server.Options{ServerName: "door", DontListen: true, NoLog: true, NoSigs: true, MaxPayload: 8 << 20}}
	d.opts.LeafNode.Host, d.opts.LeafNode.Port = "127.0.0.1", server.RANDOM_PORT
	d.opts.LeafNode.TLSConfig, d.opts.LeafNode.TLSTimeout, d.opts.LeafNode.TLSHandshakeFirst = secure, 5, true
	d.opts.LeafNode.Compression.Mode = server.CompressionOff
	d.opts.Websocket.Host, d.opts.Websocket.Port, d.opts.Websocket.TLSConfig = "127.0.0.1", server.RANDOM_PORT, secure
	d.opts.AuthCallout = &server.AuthCallout{Issuer: public, Account: authAccount}
	for _, name := range []string{authAccount, LobbyAccount, CellAccount} {
		account := server.NewAccount(name)
		d.opts.Accounts = append(d.opts.Accounts, account)
		d.opts.Users = append(d.opts.Users, &server.User{Username: name, Password: name, Account: account})
		d.opts.AuthCallout.AuthUsers = append(d.opts.AuthCallout.AuthUsers, name)
	}
	d.nats, err = server.NewServer(d.opts)
	kit.Must(tb, err)
	d.nats.Start()
	tb.Cleanup(func() {
		d.nats.Shutdown()
		d.nats.WaitForShutdown()
	})
	if !d.nats.ReadyForConnections(waitTimeout) {
		tb.Fatal("door not ready")
	}
	_, err = d.Client(authAccount).Subscribe(server.AuthCalloutSubject, func(m *nats.Msg) {
		answer, err := answerCallout(m.Data, issuer, judge)
		if err == nil {
			err = m.Respond([]byte(answer))
		}
		if err != nil && !errors.Is(err, nats.ErrConnectionClosed) { // the test has ended while a gateway still dials
			tb.Errorf("answer a callout: %v", err)
		}
	})
	kit.Must(tb, err)
	return d
}

func answerCallout(request []byte, issuer nkeys.KeyPair, judge func(identity.Credential) *Admission) (string, error) {
	asked, err := jwt.DecodeAuthorizationRequestClaims(string(request))
	if err != nil {
		return "", err
	}
	answer := jwt.NewAuthorizationResponseClaims(asked.UserNkey)
	answer.Audience = asked.Server.ID
	pass, why := verifyCredential(asked, judge)
	if pass == nil {
		answer.Error = why
		return answer.Encode(issuer)
	}
	user := jwt.NewUserClaims(asked.UserNkey)
	user.Audience = pass.Account
	user.Pub.Allow, user.Sub.Allow = pass.Publish, pass.Subscribe
	if answer.Jwt, err = user.Encode(issuer); err != nil {
		return "", err
	}
	return answer.Encode(issuer)
}

// verifyCredential checks that the key in a gateway's credential has signed the server's nonce.
func verifyCredential(asked *jwt.AuthorizationRequestClaims, judge func(identity.Credential) *Admission) (pass *Admission, why string) {
	shown, signature, err := identity.DecodeCredential(asked.ConnectOptions.SignedNonce)
	if err != nil {
		return nil, err.Error()
	}
	key, err := nkeys.FromPublicKey(shown.Key)
	if err != nil {
		return nil, fmt.Sprint("key: ", err)
	}
	if err := key.Verify([]byte(asked.ClientInformation.Nonce), signature); err != nil {
		return nil, fmt.Sprint("signature: ", err)
	}
	if pass = judge(shown); pass == nil {
		why = "not let in"
	}
	return pass, why
}

// Addr returns the address of the leaf listener.
func (d *AuthHub) Addr() string { return fmt.Sprintf("127.0.0.1:%d", d.opts.LeafNode.Port) }

// WebSocketAddr returns the address of the leaf listener for WebSocket.
func (d *AuthHub) WebSocketAddr() string { return fmt.Sprintf("127.0.0.1:%d", d.opts.Websocket.Port) }

// Client returns a client in an account of the hub; it ends with the test.
func (d *AuthHub) Client(account string) *nats.Conn {
	d.tb.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(d.nats), nats.UserInfo(account, account))
	kit.Must(d.tb, err)
	d.tb.Cleanup(nc.Close)
	return nc
}

// CloseLinks closes all links.
func (d *AuthHub) CloseLinks() {
	d.tb.Helper()
	all, err := d.nats.Leafz(nil)
	kit.Must(d.tb, err)
	for _, l := range all.Leafs {
		_ = d.nats.DisconnectClientByID(l.ID) // it has closed meanwhile
	}
}

package broker

import (
	"crypto/subtle"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/crypto/bcrypt"
)

// authenticator decides who may connect. It implements server.Authentication.
type authenticator struct {
	users     map[string]User
	anonymous bool
	// secret is the password of the gateway's own connections.
	secret string
	// open: clients may connect.
	open *atomic.Bool
	// clientID returns the MQTT client id of a connection.
	clientID func(connection uint64) string
	metrics  *metrics
}

// Check lets a connection in and gives it its permissions.
func (a *authenticator) Check(c server.ClientAuthentication) bool {
	o := c.GetOpts()
	if o.Username == ownUser {
		if subtle.ConstantTimeCompare([]byte(o.Password), []byte(a.secret)) != 1 {
			a.metrics.refused.WithLabelValues("login").Inc()
			return false
		}
		c.RegisterUser(&server.User{Username: ownUser})
		return true
	}
	permissions := a.permissions(o.Username, o.Password, a.clientID(c.GetID()))
	if permissions == nil {
		a.metrics.refused.WithLabelValues("login").Inc()
		return false
	}
	c.RegisterUser(&server.User{Username: o.Username, Permissions: permissions})
	return true
}

// permissions returns nil for a client that may not connect.
func (a *authenticator) permissions(name, password, clientID string) *server.Permissions {
	owner, _, _ := strings.Cut(clientID, "/")
	_, owned := a.users[owner]
	switch {
	case !a.open.Load(), clientID == "":
		return nil
	case name == "":
		if !a.anonymous || owned {
			return nil
		}
		return anonymousPermissions()
	case owner != name:
		return nil // a client id is the key of a session: who names another's takes its messages
	}
	user, ok := a.users[name]
	if !ok || bcrypt.CompareHashAndPassword([]byte(user.PasswordHash), []byte(password)) != nil {
		return nil
	}
	return devicePermissions(user.Devices)
}

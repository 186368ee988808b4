// Package access says who may connect to a gateway's MQTT broker, and what each client may publish and subscribe.
package access

import (
	"crypto/subtle"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/bcrypt"
	"k8s.io/apimachinery/pkg/types"
)

// OwnUser is the user of the gateway's own connections.
const OwnUser = "frond"

// User is a device or an app.
type User struct {
	// Name is also the client id, or the part of it before a "/", and the first level of the user's custom topics, <name>/user/#.
	Name string
	// PasswordHash is of bcrypt.
	PasswordHash string
	// Devices are those whose topics the user may use.
	Devices []types.NamespacedName
}

// Authenticator decides who may connect. It implements server.Authentication.
type Authenticator struct {
	Users     map[string]User
	Anonymous bool
	// Secret is the password of the gateway's own connections.
	Secret string
	// Open: clients may connect.
	Open *atomic.Bool
	// ClientID returns the MQTT client id of a connection.
	ClientID func(connection uint64) string
	// Resuming is called for each client that may connect, before its session is resumed.
	Resuming func(clientID string)
	// Refused counts.
	Refused prometheus.Counter
}

// Check lets a connection in and gives it its permissions.
func (a *Authenticator) Check(c server.ClientAuthentication) bool {
	o := c.GetOpts()
	if o.Username == OwnUser {
		if subtle.ConstantTimeCompare([]byte(o.Password), []byte(a.Secret)) != 1 {
			a.Refused.Inc()
			return false
		}
		c.RegisterUser(&server.User{Username: OwnUser})
		return true
	}
	clientID := a.ClientID(c.GetID())
	permissions := a.permissions(o.Username, o.Password, clientID)
	if permissions == nil {
		a.Refused.Inc()
		return false
	}
	a.Resuming(clientID)
	c.RegisterUser(&server.User{Username: o.Username, Permissions: permissions})
	return true
}

// permissions returns nil for a client that may not connect.
func (a *Authenticator) permissions(name, password, clientID string) *server.Permissions {
	owner, _, _ := strings.Cut(clientID, "/")
	_, owned := a.Users[owner]
	switch {
	case !a.Open.Load(), clientID == "":
		return nil
	case name == "":
		if !a.Anonymous || owned {
			return nil
		}
		return anonymousPermissions(a.Users)
	case owner != name:
		return nil // a client id is the key of a session: who names another's takes its messages
	}
	user, ok := a.Users[name]
	if !ok || bcrypt.CompareHashAndPassword([]byte(user.PasswordHash), []byte(password)) != nil {
		return nil
	}
	return userPermissions(user)
}

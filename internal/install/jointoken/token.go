// Package jointoken makes the tokens by which gateways join, and says what state one is in.
package jointoken

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
)

// Options are the administrator's choices for a token.
type Options struct {
	// TTL is the token's lifetime.
	TTL time.Duration
	// Uses is how many gateways may join with it; 0 is any number.
	Uses int
	// Node is the only node that may use it; "" is any new one.
	Node        string
	Description string
}

// New makes a random token, and its Secret in Kubernetes: a bootstrap token, so that kubeadm lists it and the
// token cleaner deletes it. It does not authenticate to the Kubernetes API, because it lacks the usage authentication.
func New(o Options, now time.Time) (token string, secret *corev1.Secret, err error) {
	if err := o.validate(); err != nil {
		return "", nil, err
	}
	if token, err = bootstraputil.GenerateBootstrapToken(); err != nil {
		return "", nil, fmt.Errorf("make token: %w", err)
	}
	id, private, _ := strings.Cut(token, ".")
	secret = &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: identity.TokenNamespace, Name: bootstraputil.BootstrapTokenSecretName(id),
			Annotations: map[string]string{names.AnnotationUses: strconv.Itoa(o.Uses)},
		},
		Type: bootstrapapi.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			bootstrapapi.BootstrapTokenIDKey:          []byte(id),
			bootstrapapi.BootstrapTokenSecretKey:      []byte(private),
			bootstrapapi.BootstrapTokenExpirationKey:  []byte(now.Add(o.TTL).UTC().Format(time.RFC3339)),
			bootstrapapi.BootstrapTokenExtraGroupsKey: []byte(identity.TokenGroup),
		},
	}
	if o.Description != "" {
		secret.Data[bootstrapapi.BootstrapTokenDescriptionKey] = []byte(o.Description)
	}
	if o.Node != "" {
		secret.Annotations[names.AnnotationNode] = o.Node
	}
	return token, secret, nil
}

func (o Options) validate() error {
	var faults []error
	if o.TTL < time.Minute {
		faults = append(faults, fmt.Errorf("--ttl %s: choose a minute at least; there are no tokens without an end", o.TTL))
	}
	if o.Uses < 0 {
		faults = append(faults, fmt.Errorf("--uses %d: choose how many gateways may join with it, or 0 for any number", o.Uses))
	}
	if o.Node != "" {
		for _, fault := range validation.IsDNS1123Subdomain(o.Node) {
			faults = append(faults, fmt.Errorf("--node %q is no name of a Node: %s", o.Node, fault))
		}
	}
	return errors.Join(faults...)
}

// State returns the state of a token: "valid", "expired" or "used up".
func State(t identity.Token, now time.Time) string {
	switch {
	case !t.Expires.IsZero() && !now.Before(t.Expires):
		return "expired"
	case t.UsedUp():
		return "used up"
	}
	return "valid"
}

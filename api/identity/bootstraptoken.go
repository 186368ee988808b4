package identity

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/names"
)

// A bootstrap token "id.secret" is a Secret of this type in this namespace, named TokenName(id).
const (
	TokenNamespace = "kube-system"
	TokenType      = corev1.SecretType("bootstrap.kubernetes.io/token")
)

// The keys of the Secret's data, which are Kubernetes' own.
const (
	dataID         = "token-id"
	dataSecret     = "token-secret"
	dataExpiration = "expiration"
	dataGroups     = "auth-extra-groups"
	dataUsage      = "usage-bootstrap-authentication"
)

// The lengths of a token's id and secret.
const (
	tokenIDLength     = 6
	tokenSecretLength = 16
)

// Token is what a Secret says of a token.
type Token struct {
	ID, Secret string
	// Expires is zero for a token that does not.
	Expires time.Time
	// Node may be empty; Uses 0 is no limit.
	Node string
	Uses int
	// Used are its uses, each "NODE=KEY".
	Used []string
}

// TokenName returns the name of the Secret.
func TokenName(id string) string { return "bootstrap-token-" + id }

// SplitToken splits "id.secret". ok is false for text that Kubernetes would not accept as a token.
func SplitToken(token string) (id, secret string, ok bool) {
	id, secret, _ = strings.Cut(token, ".")
	return id, secret, validTokenPart(id, tokenIDLength) && validTokenPart(secret, tokenSecretLength)
}

func validTokenPart(s string, length int) bool {
	return len(s) == length && !strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
}

// TokenOf reads a token from its Secret. Any doubt is an error: such a token admits no gateway.
func TokenOf(s *corev1.Secret) (Token, error) {
	t := Token{ID: string(s.Data[dataID]), Secret: string(s.Data[dataSecret]), Node: s.Annotations[names.AnnotationNode], Uses: 1}
	switch {
	case s.Namespace != TokenNamespace || s.Type != TokenType || s.Name != TokenName(t.ID):
		return Token{}, fmt.Errorf("secret %s is no bootstrap token", s.Name)
	case !validTokenPart(t.ID, tokenIDLength) || !validTokenPart(t.Secret, tokenSecretLength):
		return Token{}, fmt.Errorf("token %s: its id or its secret is not as Kubernetes makes them", t.ID)
	case !slices.Contains(strings.Split(string(s.Data[dataGroups]), ","), TokenGroup):
		return Token{}, fmt.Errorf("token %s is not for gateways: its groups lack %s", t.ID, TokenGroup)
	case string(s.Data[dataUsage]) == "false":
		return Token{}, fmt.Errorf("token %s is not for authentication", t.ID)
	}
	if expires := string(s.Data[dataExpiration]); expires != "" {
		var err error
		if t.Expires, err = time.Parse(time.RFC3339, expires); err != nil {
			return Token{}, fmt.Errorf("token %s: expiration: %w", t.ID, err)
		}
	}
	if uses, set := s.Annotations[names.AnnotationUses]; set {
		var err error
		if t.Uses, err = strconv.Atoi(uses); err != nil || t.Uses < 0 {
			return Token{}, fmt.Errorf("token %s: %s is %.20q", t.ID, names.AnnotationUses, uses)
		}
	}
	if used := s.Annotations[names.AnnotationUsed]; used != "" {
		t.Used = strings.Split(used, ",")
	}
	return t, nil
}

// UsedBy reports whether this node has already used the token with this key; then it costs no further use.
func (t Token) UsedBy(node, key string) bool { return slices.Contains(t.Used, node+"="+key) }

// UsedUp reports whether the token admits no further gateway.
func (t Token) UsedUp() bool { return t.Uses > 0 && len(t.Used) >= t.Uses }

// MarkUsed records in the Secret that a node joined by the token with a key.
func MarkUsed(s *corev1.Secret, node, key string) {
	use := node + "=" + key
	if used := s.Annotations[names.AnnotationUsed]; used != "" {
		use = used + "," + use
	}
	if s.Annotations == nil {
		s.Annotations = make(map[string]string, 1)
	}
	s.Annotations[names.AnnotationUsed] = use
}

package wire

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Key names one Kubernetes object: the group ("" is core), the plural resource, the namespace ("" for cluster-scoped
// objects) and the name. It is comparable and may be a map key.
type Key struct {
	Group     string
	Resource  string
	Namespace string
	Name      string
}

// core stands for the empty group in a token; no other API group may have this name, because their names contain a dot.
const core = "core"

// ErrToken reports a token or subject that Escape cannot have made.
var ErrToken = errors.New("not a frond token")

// String returns the key as four NATS tokens, group.resource.namespace.name, each escaped with Escape.
// It is the subject suffix of the object and, with a prefix, its key in the edge store.
func (k Key) String() string {
	group := Escape(k.Group)
	switch k.Group {
	case "":
		group = core
	case core:
		group = "=63ore"
	}
	return group + "." + Escape(k.Resource) + "." + Escape(k.Namespace) + "." + Escape(k.Name)
}

// Human returns the key in readable form: "configmaps default/web" or "deployments.apps default/web".
func (k Key) Human() string {
	resource := k.Resource
	if k.Group != "" {
		resource += "." + k.Group
	}
	if k.Namespace == "" {
		return resource + " " + k.Name
	}
	return resource + " " + k.Namespace + "/" + k.Name
}

// Compare orders keys by group, resource, namespace and name.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(k.Group, o.Group), strings.Compare(k.Resource, o.Resource),
		strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name))
}

// ParseKey is the inverse of Key.String. It refuses any text that String cannot have made, wrapped in ErrToken, so that one object has
// exactly one spelling.
func ParseKey(s string) (Key, error) {
	tokens := strings.Split(s, ".")
	if len(tokens) != 4 {
		return Key{}, fmt.Errorf("%w: key %q has %d tokens, want 4", ErrToken, truncateText(s), len(tokens))
	}
	var k Key
	for i, field := range []*string{&k.Group, &k.Resource, &k.Namespace, &k.Name} {
		if i == 0 && tokens[0] == core {
			continue
		}
		v, err := Unescape(tokens[i])
		if err != nil {
			return Key{}, fmt.Errorf("key %q: %w", truncateText(s), err)
		}
		*field = v
	}
	if k.String() != s {
		return Key{}, fmt.Errorf("%w: key %q is not in its canonical spelling", ErrToken, truncateText(s))
	}
	if k.Resource == "" || k.Name == "" {
		return Key{}, fmt.Errorf("%w: key %q names no object", ErrToken, truncateText(s))
	}
	return k, nil
}

// Escape turns any text into one NATS token that is also legal in a key of a KV bucket and in a consumer's name.
// Letters, digits and '-' stand for themselves, '.' becomes '_', the empty text becomes "_" and each other byte
// becomes '=' and two upper-case hex digits; "." alone becomes "=2E". Unescape undoes it.
func Escape(s string) string {
	switch s {
	case "":
		return "_"
	case ".":
		return "=2E"
	}
	var b strings.Builder
	b.Grow(len(s))
	for i := range len(s) {
		switch c := s[i]; {
		case isPlainByte(c):
			b.WriteByte(c)
		case c == '.':
			b.WriteByte('_')
		default:
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}

// Unescape is the inverse of Escape. It refuses, wrapped in ErrToken, any text that Escape cannot have made.
func Unescape(token string) (string, error) {
	if token == "_" {
		return "", nil
	}
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		switch c := token[i]; {
		case isPlainByte(c):
			b.WriteByte(c)
		case c == '_':
			b.WriteByte('.')
		case c == '=' && i+2 < len(token):
			v, err := strconv.ParseUint(token[i+1:i+3], 16, 8)
			if err != nil {
				return "", fmt.Errorf("%w: %q", ErrToken, truncateText(token))
			}
			b.WriteByte(byte(v))
			i += 2
		default:
			return "", fmt.Errorf("%w: %q", ErrToken, truncateText(token))
		}
	}
	if b.Len() == 0 {
		return "", fmt.Errorf("%w: empty", ErrToken)
	}
	return b.String(), nil
}

func isPlainByte(c byte) bool {
	return c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// truncateText bounds the untrusted text that an error repeats.
func truncateText(s string) string {
	const most = 120
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

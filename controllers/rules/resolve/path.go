package resolve

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/frond-edge/frond/api/rules"
)

// Call is where a rule from rest to servicebus leads: a service at the loopback address of the gateway that the caller names.
type Call struct {
	// Source is the path below the entry that the rule takes: segments, of which {x} is any one.
	Source string
	// Port and Path are the service's; Path begins with a slash.
	Port uint16
	Path string
}

// Route is a Call and whose it is.
type Route struct {
	Rule string
	Call Call
}

func resolveRESTToServiceBus(rule *rules.Rule, target *rules.RuleEndpoint) (Call, *Problem) {
	source := strings.Trim(rule.Spec.SourceResource[rules.KeyPath], "/")
	if fault := checkPath(source); fault != "" {
		return Call{}, problemf(ReasonInvalidSource, "spec.sourceResource.path %.80q %s.", source, fault)
	}
	if source == "" {
		return Call{}, problemf(ReasonInvalidSource, "spec.sourceResource.path is empty.")
	}
	path := strings.Trim(rule.Spec.TargetResource[rules.KeyPath], "/")
	if fault := checkPath(path); fault != "" {
		return Call{}, problemf(ReasonInvalidTarget, "spec.targetResource.path %.80q %s.", path, fault)
	}
	port, err := strconv.ParseUint(target.Spec.Properties[rules.KeyServicePort], 10, 16)
	if err != nil || port == 0 {
		return Call{}, problemf(ReasonInvalidTarget, "The RuleEndpoint %q needs properties.service_port, \"1\" to \"65535\".", target.Name)
	}
	return Call{Source: source, Port: uint16(port), Path: "/" + path}, nil
}

// checkPath returns what is wrong with a path, or "".
func checkPath(path string) string {
	switch {
	case len(path) > maxTopic:
		return fmt.Sprintf("has more than %d bytes", maxTopic)
	case !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl) || strings.ContainsAny(path, "?#\\ "):
		return "has a character that is not allowed in a path"
	case path == "":
		return ""
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return "has a segment that is empty, . or .."
		}
	}
	return ""
}

// Request is what a caller of the entry asks for.
type Request struct {
	Node, Namespace string
	// Segments are those of the path behind node and namespace, as in the request and decoded.
	Escaped, Segments []string
}

// ParseRequest splits the escaped path of a request, /<node>/<namespace>/<path>. It refuses what a service could read as another path.
func ParseRequest(escaped string) (Request, error) {
	parts := strings.Split(strings.Trim(escaped, "/"), "/")
	decoded := make([]string, len(parts))
	for i, part := range parts {
		segment, err := url.PathUnescape(part)
		if err != nil || segment == "" || segment == "." || segment == ".." || strings.ContainsAny(segment, "/\\") || strings.ContainsFunc(segment, unicode.IsControl) {
			return Request{}, fmt.Errorf("the path has the segment %.80q", part)
		}
		decoded[i] = segment
	}
	if len(parts) < 3 {
		return Request{}, fmt.Errorf("the path %.80q is not /<node>/<namespace>/<path>", escaped)
	}
	return Request{Node: decoded[0], Namespace: decoded[1], Escaped: parts[2:], Segments: decoded[2:]}, nil
}

// isParameter reports whether a segment of a rule's path is {x}.
func isParameter(segment string) bool {
	return strings.HasPrefix(segment, "{") && strings.HasSuffix(segment, "}")
}

// matches reports whether a rule's path is the beginning of a request's, segment by segment.
func matches(source, segments []string) bool {
	if len(source) > len(segments) {
		return false
	}
	for i, want := range source {
		if want != segments[i] && !isParameter(want) {
			return false
		}
	}
	return true
}

// compareRoutes orders routes that match one request, the more specific one first: that with the first segment which is no parameter where the other's
// is one, then the longer one, then by name.
func compareRoutes(a, b Route) int {
	left, right := strings.Split(a.Call.Source, "/"), strings.Split(b.Call.Source, "/")
	for i := range min(len(left), len(right)) {
		if x, y := isParameter(left[i]), isParameter(right[i]); x != y {
			if y {
				return -1
			}
			return 1
		}
	}
	return cmp.Or(cmp.Compare(len(right), len(left)), cmp.Compare(a.Rule, b.Rule))
}

// Choose returns the route of a request, and the path at the service: the rule's, with the rest of the request's behind it.
func Choose(routes []Route, request Request) (chosen Route, path string, found bool) {
	var fitting []Route
	for _, route := range routes {
		if matches(strings.Split(route.Call.Source, "/"), request.Segments) {
			fitting = append(fitting, route)
		}
	}
	if len(fitting) == 0 {
		return Route{}, "", false
	}
	chosen = slices.MinFunc(fitting, compareRoutes)
	path = (&url.URL{Path: chosen.Call.Path}).EscapedPath()
	if rest := request.Escaped[strings.Count(chosen.Call.Source, "/")+1:]; len(rest) > 0 {
		path = strings.TrimSuffix(path, "/") + "/" + strings.Join(rest, "/")
	}
	return chosen, path, true
}

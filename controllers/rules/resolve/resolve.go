// Package resolve decides what a Rule asks for: which messages go where, or why none can. It has no I/O.
package resolve

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/frond-edge/frond/api/rules"
)

// The reasons of a Problem, which are those of the condition Ready.
const (
	ReasonEndpointMissing  = "EndpointMissing"
	ReasonPairNotSupported = "PairNotSupported"
	ReasonInvalidSource    = "InvalidSource"
	ReasonInvalidTarget    = "InvalidTarget"
	ReasonTopicNotSent     = "TopicNotSent"
	ReasonTooManyRules     = "TooManyRules"
)

// maxTopic is that of messages of apps (streams/telemetry.MaxTopic).
const maxTopic = 512

// Feed is what a rule asks for.
type Feed struct {
	// Node is the gateway whose messages are passed on.
	Node string
	// Topic is an MQTT filter, with the namespace of the rule as its first level.
	Topic string
	// URL is where each message is sent to.
	URL string
}

// Problem says why a rule passes nothing on. Its text is for the author of the rule.
type Problem struct {
	Reason, Message string
}

func problemf(reason, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Resolution is what can be done for a rule: one of the two is not zero.
type Resolution struct {
	Feed Feed
	Call Call
}

// Resolve returns what a rule asks for, or why nothing can be done for it. endpoint returns a RuleEndpoint of the rule's namespace, nil if there is none.
func Resolve(rule *rules.Rule, endpoint func(name string) *rules.RuleEndpoint) (r Resolution, problem *Problem) {
	source, target := endpoint(rule.Spec.Source), endpoint(rule.Spec.Target)
	switch {
	case source == nil:
		return r, problemf(ReasonEndpointMissing, "There is no RuleEndpoint %q in the namespace: create it, or correct spec.source.", rule.Spec.Source)
	case target == nil:
		return r, problemf(ReasonEndpointMissing, "There is no RuleEndpoint %q in the namespace: create it, or correct spec.target.", rule.Spec.Target)
	}
	from, to := source.Spec.RuleEndpointType, target.Spec.RuleEndpointType
	switch {
	case from == rules.TypeEventBus && to == rules.TypeREST:
		r.Feed, problem = resolveEventBusToREST(rule)
	case from == rules.TypeREST && to == rules.TypeServiceBus:
		r.Call, problem = resolveRESTToServiceBus(rule, target)
	default:
		problem = problemf(ReasonPairNotSupported, "Rules from %s to %s are not built; those from eventbus to rest and from rest to servicebus are.", from, to)
	}
	return r, problem
}

func resolveEventBusToREST(rule *rules.Rule) (Feed, *Problem) {
	node, topic := rule.Spec.SourceResource[rules.KeyNodeName], rule.Spec.SourceResource[rules.KeyTopic]
	if faults := validation.IsDNS1123Subdomain(node); len(faults) > 0 {
		return Feed{}, problemf(ReasonInvalidSource, "spec.sourceResource.node_name %.80q is not the name of a Node: %s.", node, faults[0])
	}
	full := rule.Namespace + "/" + topic
	if fault := checkFilter(topic, full); fault != "" {
		return Feed{}, problemf(ReasonInvalidSource, "spec.sourceResource.topic %.80q %s.", topic, fault)
	}
	if !sentToCloud(topic) {
		return Feed{}, problemf(ReasonTopicNotSent, "Gateways send no messages on %s to the cloud, only those below %s/user/: "+
			"let the app publish there, and begin spec.sourceResource.topic with user/.", full, rule.Namespace)
	}
	target := rule.Spec.TargetResource[rules.KeyResource]
	if fault := checkURL(target); fault != "" {
		return Feed{}, problemf(ReasonInvalidTarget, "spec.targetResource.resource %s.", fault)
	}
	return Feed{Node: node, Topic: full, URL: target}, nil
}

// checkFilter returns what is wrong with an MQTT filter, or "".
func checkFilter(topic, full string) string {
	switch {
	case topic == "":
		return "is empty"
	case len(full) > maxTopic:
		return fmt.Sprintf("has, with the namespace, more than %d bytes", maxTopic)
	case !utf8.ValidString(topic) || strings.ContainsFunc(topic, unicode.IsControl):
		return "has a control character, or is not UTF-8"
	}
	levels := strings.Split(topic, "/")
	for i, level := range levels {
		switch {
		case level == "+", level == "#" && i == len(levels)-1:
		case strings.ContainsAny(level, "+#"):
			return "has a wildcard that is not a level of its own, or # before the end"
		}
	}
	return ""
}

// sentToCloud reports whether messages on topics of a filter, without its namespace, can reach the cloud: custom topics do, which are
// <name>/user/# (docs/operations/messages.md).
func sentToCloud(topic string) bool {
	first, _, _ := strings.Cut(topic, "/")
	return first == "user" || first == "+" || first == "#"
}

// checkURL returns what is wrong with a target, or "". It does not repeat the URL, which may hold a password.
func checkURL(target string) string {
	u, err := url.Parse(target)
	switch {
	case err != nil:
		return "is no URL"
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Sprintf("has the scheme %.20q, want http or https", u.Scheme)
	case u.Hostname() == "":
		return "names no host"
	case u.Port() != "":
		if port, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || port == 0 {
			return "has a port that is not 1 to 65535"
		}
	}
	return ""
}

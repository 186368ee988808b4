package identity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nkeys"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/cloud/identity/throttle"
	"github.com/frond-edge/frond/streams/call"
)

// Policy contains the configurable parameters.
type Policy struct {
	// Cells is the number of cells of the hub.
	Cells int
	// KeyLifetime is how long a key is valid; RenewWindow is how long after that it may be renewed, 0 not at all.
	KeyLifetime, RenewWindow time.Duration
}

// Trust contains what a gateway receives besides its key. The files are read for each answer, so that they may change.
type Trust struct {
	HubURLs                  []string
	HubCAFile, ClusterCAFile string
}

// LinkRekeyer transfers the link with a nonce to another key of its node, which has signed the nonce. It reports whether
// the link is recorded for that key now.
type LinkRekeyer interface {
	Rekey(node, key, nonce string, signature []byte) bool
}

// Registrar records keys: it answers enrol and renew. It reads everything it decides on from Kubernetes at that moment,
// and writes under the version that it read, so any number of replicas may answer the same gateway at once.
type Registrar struct {
	objects  client.Client
	kube     kubernetes.Interface
	records  *Records
	policy   Policy
	trust    Trust
	links    LinkRekeyer
	keySeen  func(node, key string)
	throttle *throttle.TokenThrottle
	logDedup *throttle.LogDedup
	now      func() time.Time
	metrics  *Metrics
	log      *zap.Logger
}

// NewRegistrar creates a Registrar. seen is called when a node's newest key is in use; it must not block.
func NewRegistrar(objects client.Client, kube kubernetes.Interface, records *Records, policy Policy, trust Trust,
	links LinkRekeyer, seen func(node, key string), metrics *Metrics, log *zap.Logger,
) *Registrar {
	return &Registrar{
		objects: objects, kube: kube, records: records, policy: policy, trust: trust, links: links, keySeen: seen,
		throttle: throttle.NewTokenThrottle(time.Now, metrics.CountLockout), logDedup: throttle.NewLogDedup(time.Now), now: time.Now, metrics: metrics, log: log,
	}
}

// awaitRecordTimeout is how long an answer waits until this replica's own records contain it: other replicas have it
// then, too, or soon.
const awaitRecordTimeout = 2 * time.Second

// refusal is the error of a request that is not granted; its text is for the operator of the gateway.
type refusal struct {
	reason Reason
	text   string
}

func (r *refusal) Error() string { return r.text }

func newRefusal(reason Reason, format string, values ...any) error {
	return &refusal{reason, fmt.Sprintf(format, values...)}
}

// malformedRequest is not sent to the dead letters: a request that cannot be decoded may contain a token.
func malformedRequest(err error) error {
	return newRefusal(ReasonGarbage, "the request cannot be read: %v", err)
}

// Enrol is the call.Handler of identity.VerbEnrol.
func (r *Registrar) Enrol(ctx context.Context, caller string, request []byte) (any, error) {
	var req identity.EnrolRequest
	if err := call.DecodeRequest(request, &req); err != nil {
		return r.buildReply(ctx, caller, identity.VerbEnrol, "", "", time.Time{}, malformedRequest(err))
	}
	expires, err := r.enrolNode(ctx, caller, req)
	return r.buildReply(ctx, caller, identity.VerbEnrol, req.Node, req.Key, expires, err)
}

// Renew is the call.Handler of identity.VerbRenew.
func (r *Registrar) Renew(ctx context.Context, caller string, request []byte) (any, error) {
	var req identity.RenewRequest
	if err := call.DecodeRequest(request, &req); err != nil {
		return r.buildReply(ctx, caller, identity.VerbRenew, "", "", time.Time{}, malformedRequest(err))
	}
	expires, err := r.renewKey(ctx, caller, req)
	carried := err == nil && caller == req.Node && r.links.Rekey(req.Node, req.Key, req.Nonce, req.Link)
	if carried && req.Key == req.Current {
		r.keySeen(req.Node, req.Key) // it has received the answer that made this its key
	}
	reply, err := r.buildReply(ctx, caller, identity.VerbRenew, req.Node, req.Key, expires, err)
	if answer, ok := reply.(identity.Enrolment); ok && answer.Reason == "" {
		answer.Carried = carried
		return answer, err
	}
	return reply, err
}

// buildReply creates the reply from a decision. The same refusal of the same caller is logged once per span.
func (r *Registrar) buildReply(ctx context.Context, caller, verb, node, key string, expires time.Time, err error) (any, error) {
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		r.metrics.CountRefusal(refused.reason)
		if r.logDedup.IsFirst(verb + " " + string(refused.reason) + " " + caller) {
			r.log.Warn("identity refused", zap.String("caller", caller), zap.String("verb", verb), zap.String("node", SanitizeText(node)),
				zap.String("key", SanitizeText(key)), zap.String("reason", string(refused.reason)))
		}
		return identity.Enrolment{Reason: refused.text, Now: r.now()}, nil
	case err != nil:
		return nil, err
	}
	answer := identity.Enrolment{Expires: expires, Now: r.now(), HubURLs: r.trust.HubURLs}
	var faults [2]error
	answer.HubCA, faults[0] = readTextFile(r.trust.HubCAFile)
	answer.ClusterCA, faults[1] = readTextFile(r.trust.ClusterCAFile)
	if err := errors.Join(faults[:]...); err != nil {
		return nil, fmt.Errorf("read what gateways trust: %w", err)
	}
	wctx, cancel := context.WithTimeout(ctx, awaitRecordTimeout)
	defer cancel()
	r.records.AwaitKey(wctx, node, key)
	return answer, nil
}

// readTextFile returns a file's text; "" if no file is configured.
func readTextFile(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	data, err := os.ReadFile(file)
	return string(data), err
}

// enrolNode records a key for a node, if a token allows it.
func (r *Registrar) enrolNode(ctx context.Context, caller string, req identity.EnrolRequest) (time.Time, error) {
	if err := verifyClaim(identity.VerbEnrol, caller, req.Node, req.Key, req.Key, req.Signature); err != nil {
		return time.Time{}, err
	}
	var expires time.Time
	err := retry.OnError(conflictBackoff(), isConflict, func() error {
		object, err := r.readIdentity(ctx, req.Node)
		if err != nil {
			return err
		}
		if object != nil && KeyStatus(recordOf(object), req.Key, r.isRevoked(object, req.Key), r.now()) == "" {
			expires = object.Spec.Expires.Time // repeated request: the first answer was lost
			return nil
		}
		secret, token, err := r.checkRequestToken(ctx, caller, req)
		if err != nil {
			return err
		}
		if err := r.authorizeKey(ctx, object, token, req); err != nil {
			return err
		}
		if err := r.markTokenUse(ctx, secret, token, req); err != nil {
			return err
		}
		expires, err = r.recordKey(ctx, object, req)
		return err
	})
	return expires, err
}

// conflictBackoff is the backoff of repeated reads: several hundred gateways may enrol at once with one token.
func conflictBackoff() wait.Backoff {
	return wait.Backoff{Steps: 12, Duration: 10 * time.Millisecond, Factor: 1.6, Jitter: 1, Cap: time.Second}
}

// isConflict reports whether another replica or a user wrote first: the object must be read again.
func isConflict(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// verifyClaim verifies that a request is the caller's own, and that its key has signed it. In the lobby the caller is
// the link's key.
func verifyClaim(verb, caller, node, own, key string, signature []byte) error {
	switch {
	case own != caller:
		return newRefusal(ReasonCaller, "the key in the request is not the one of this link")
	case !IsNodeName(node):
		return newRefusal(ReasonNodeName, "%.64q cannot be the name of a Node: it takes lower case letters, digits, '-' and '.'", node)
	case !VerifySignature(key, identity.Proof(verb, node, key), signature):
		return newRefusal(ReasonProof, "the key in the request has not signed it")
	}
	return nil
}

// VerifySignature reports whether a key has signed data.
func VerifySignature(key string, data, signature []byte) bool {
	if !nkeys.IsValidPublicUserKey(key) {
		return false
	}
	public, err := nkeys.FromPublicKey(key)
	return err == nil && public.Verify(data, signature) == nil
}

// readIdentity reads the NodeIdentity of a node from Kubernetes itself; nil if there is none.
func (r *Registrar) readIdentity(ctx context.Context, node string) (*identity.NodeIdentity, error) {
	object := &identity.NodeIdentity{}
	err := r.objects.Get(ctx, client.ObjectKey{Name: node}, object)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // nothing there is an answer
	case err != nil:
		return nil, fmt.Errorf("read the identity of %s: %w", node, err)
	}
	return object, nil
}

// checkRequestToken reads and checks the request's token.
func (r *Registrar) checkRequestToken(ctx context.Context, caller string, req identity.EnrolRequest) (*corev1.Secret, *identity.Token, error) {
	const another = "; make another one with `frond token create`"
	id, secret, ok := identity.SplitToken(req.Token)
	if !ok {
		return nil, nil, newRefusal(ReasonTokenUnknown, "what was given is no token: it is six letters or digits, a dot, and sixteen of them")
	}
	if !r.throttle.Allow(caller, id) {
		return nil, nil, newRefusal(ReasonLocked, "too many wrong tokens; try again in a minute")
	}
	object, err := r.kube.CoreV1().Secrets(identity.TokenNamespace).Get(ctx, identity.TokenName(id), metav1.GetOptions{})
	var token *identity.Token
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, nil, fmt.Errorf("read token %s: %w", id, err)
	default:
		if read, err := identity.TokenOf(object); err == nil {
			token = &read
		} else {
			r.log.Warn("token not usable", zap.Error(err))
		}
	}
	switch reason := CheckToken(token, secret, req.Node, req.Key, r.now()); reason {
	case "":
		return object, token, nil
	case ReasonTokenExpired:
		return nil, nil, newRefusal(reason, "token %s has expired%s", id, another)
	case ReasonTokenUsed:
		return nil, nil, newRefusal(reason, "token %s is used up%s", id, another)
	case ReasonTokenNode:
		return nil, nil, newRefusal(reason, "token %s is for another node%s", id, another)
	default: // the answer does not reveal which half is wrong
		r.throttle.RecordFailure(caller, id)
		return nil, nil, newRefusal(reason, "the token is not known%s", another)
	}
}

// authorizeKey decides whether a valid token allows this key to become the node's.
func (r *Registrar) authorizeKey(ctx context.Context, object *identity.NodeIdentity, token *identity.Token, req identity.EnrolRequest) error {
	if r.isRevoked(object, req.Key) || object != nil && object.Spec.RevokedAt != nil && slices.Contains(recordOf(object).ValidKeys(), req.Key) {
		return newRefusal(ReasonRevokedKey, "this key was revoked; run `frond reset` on the gateway, which makes another one")
	}
	if holder := r.records.Holder(req.Key); holder != "" && holder != req.Node {
		return newRefusal(ReasonForeignKey, "this key is node %s; run `frond reset` on the gateway, which makes another one", holder)
	}
	if token.Node == req.Node {
		return nil
	}
	advice := fmt.Sprintf("; if this gateway shall be it, make a token that says so: `frond token create --node %s`", req.Node)
	if object == nil || object.Spec.Key == "" && object.Spec.RevokedAt == nil {
		name := fields.OneTermEqualSelector(metav1.ObjectNameField, req.Node).String()
		nodes, err := r.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: name})
		switch {
		case err != nil:
			return fmt.Errorf("read node %s: %w", req.Node, err)
		case len(nodes.Items) == 0:
			return nil
		}
		return newRefusal(ReasonTaken, "Kubernetes has a node %s already%s", req.Node, advice)
	}
	switch record := recordOf(object); {
	case !record.RevokedAt.IsZero():
		return newRefusal(ReasonRevokedNode, "node %s was revoked%s", req.Node, advice)
	case record.Key != "" && record.Key != req.Key: // also an expired key: otherwise a token would be enough to take over an offline node
		return newRefusal(ReasonTaken, "node %s has another key%s", req.Node, advice)
	}
	return nil
}

// isRevoked reports whether a key is rejected permanently: by any record in memory, or by this object as it was read.
func (r *Registrar) isRevoked(object *identity.NodeIdentity, key string) bool {
	return r.records.IsRevoked(key) || object != nil && slices.Contains(object.Spec.Revoked, key)
}

// inRenewWindow reports whether a key with this expiry is valid, or may still be renewed.
func (r *Registrar) inRenewWindow(expires time.Time) bool {
	return r.now().Before(expires.Add(r.policy.RenewWindow))
}

// markTokenUse records a use of the token before the key is recorded, under the version that was checked: of two
// gateways with the last use one gets it. Uses of a token without a limit are not recorded: they would grow without end.
func (r *Registrar) markTokenUse(ctx context.Context, secret *corev1.Secret, token *identity.Token, req identity.EnrolRequest) error {
	if token.Uses == 0 || token.UsedBy(req.Node, req.Key) {
		return nil
	}
	identity.MarkUsed(secret, req.Node, req.Key)
	if _, err := r.kube.CoreV1().Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("note the use of token %s: %w", token.ID, err)
	}
	return nil
}

// recordKey writes the key. The keys that it replaces are rejected permanently; otherwise a token that they have used
// would restore them.
func (r *Registrar) recordKey(ctx context.Context, object *identity.NodeIdentity, req identity.EnrolRequest) (time.Time, error) {
	fresh := object == nil
	if fresh {
		object = &identity.NodeIdentity{ObjectMeta: metav1.ObjectMeta{Name: req.Node}}
	}
	if olds := recordOf(object).ValidKeys(); !slices.Contains(olds, req.Key) {
		for _, old := range olds {
			object.Spec.Revoked = appendNew(object.Spec.Revoked, old)
		}
	}
	object.Spec.Key, object.Spec.Previous, object.Spec.RevokedAt = req.Key, "", nil
	r.setLifetime(&object.Spec)
	write := func() error { return r.objects.Update(ctx, object) }
	if fresh {
		write = func() error { return r.objects.Create(ctx, object) }
	}
	if err := write(); err != nil {
		return time.Time{}, fmt.Errorf("record the key of %s: %w", req.Node, err)
	}
	r.metrics.countKeyChange(identity.VerbEnrol)
	r.log.Info("node enrolled", zap.String("node", req.Node), zap.String("key", req.Key))
	return object.Spec.Expires.Time, nil
}

// setLifetime sets the issue and expiry times of a key.
func (r *Registrar) setLifetime(spec *identity.NodeIdentitySpec) {
	now := r.now().Truncate(time.Second)
	spec.Issued, spec.Expires = metav1.NewTime(now), metav1.NewTime(now.Add(r.policy.KeyLifetime))
}

// maxRevoked bounds the revoked keys in a record; the oldest are dropped first.
const maxRevoked = 256

func appendNew(keys []string, key string) []string {
	if slices.Contains(keys, key) {
		return keys
	}
	keys = append(keys, key)
	return keys[max(0, len(keys)-maxRevoked):]
}

// SanitizeText makes unverified text safe for a log.
func SanitizeText(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "?")
}

package records

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// IsNewest reports whether a token is the last one issued for a pod, in any of its volumes.
func (t *Tokens) IsNewest(pod wire.Key, uid, token string) bool {
	entries, _ := t.store.List(Group, TokenResource, pod.Namespace)
	for _, e := range entries {
		var record tokenRecord
		var answer authenticationv1.TokenRequest
		if json.Unmarshal(e.Object, &record) == nil && record.Pod == pod && record.PodUID == uid &&
			json.Unmarshal(record.Answer, &answer) == nil && answer.Status.Token == token {
			return true
		}
	}
	return false
}

// Last returns the last answer to a request; false if there is none, or it has expired.
func (t *Tokens) Last(key wire.Key) (*authenticationv1.TokenRequest, bool) {
	e, err := t.store.Get(key)
	if err != nil {
		return nil, false
	}
	var record tokenRecord
	var answer authenticationv1.TokenRequest
	if json.Unmarshal(e.Object, &record) != nil || json.Unmarshal(record.Answer, &answer) != nil {
		return nil, false
	}
	return &answer, true
}

// removeOrphans deletes the tokens of deleted pods. It runs with each new token, so their number stays close to what the
// node's pods need.
func (t *Tokens) removeOrphans(ctx context.Context) error {
	entries, _ := t.store.List(Group, TokenResource, "")
	for _, e := range entries {
		var record tokenRecord
		if err := json.Unmarshal(e.Object, &record); err == nil {
			if record.PodUID == "" {
				continue
			}
			if pod, err := t.store.Get(record.Pod); err == nil && pod.UID == record.PodUID {
				continue
			}
		}
		if _, err := t.store.Delete(ctx, e.Key, "", nil); err != nil && !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("drop token: %w", err)
		}
	}
	return nil
}

// Save keeps the answer to a request.
func (t *Tokens) Save(ctx context.Context, key wire.Key, question, answer *authenticationv1.TokenRequest) error {
	data, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("encode token: %w", err)
	}
	record := tokenRecord{Answer: data}
	record.Metadata.Name = key.Name
	if ref := question.Spec.BoundObjectRef; ref != nil && ref.Kind == "Pod" {
		record.Pod = wire.Key{Resource: "pods", Namespace: key.Namespace, Name: ref.Name}
		record.PodUID = string(ref.UID)
	}
	if data, err = json.Marshal(record); err != nil {
		return fmt.Errorf("encode token: %w", err)
	}
	if _, err := t.store.Put(ctx, key, data, nil); err != nil {
		return fmt.Errorf("keep token: %w", err)
	}
	return t.removeOrphans(ctx)
}

// TokenKey returns the key of a token request: the service account, and all of the request except the answer.
func TokenKey(info *request.RequestInfo, question *authenticationv1.TokenRequest) (wire.Key, error) {
	spec, err := json.Marshal(question.Spec)
	if err != nil {
		return wire.Key{}, fmt.Errorf("encode token request: %w", err)
	}
	sum := sha256.Sum256(spec)
	return wire.Key{
		Group: Group, Resource: TokenResource, Namespace: info.Namespace,
		Name: info.Name + "." + hex.EncodeToString(sum[:16]),
	}, nil
}

// tokenRecord is the stored form.
type tokenRecord struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	// Pod is the key of the pod that the token is bound to; the zero key for an unbound token.
	Pod    wire.Key `json:"pod"`
	PodUID string   `json:"podUID,omitempty"`
	// Answer is the TokenRequest as the apiserver answered it, in JSON.
	Answer json.RawMessage `json:"answer"`
}

// NewTokens creates Tokens over the store.
func NewTokens(st *store.Store, log *zap.Logger) *Tokens {
	return &Tokens{store: st, log: log}
}

// Tokens holds the last token of each projected volume in the store. A gateway that reboots offline mounts it again,
// even expired: its pod cannot reach an apiserver anyway, and must run.
type Tokens struct {
	store *store.Store
	log   *zap.Logger
}

// TokenResource is the resource name of the answers in the store.
const TokenResource = "tokens"

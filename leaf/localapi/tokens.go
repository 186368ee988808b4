package localapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

const tokenResource = "tokens"

// IsSecret selects the objects of the store that must not be readable on a disk: Secrets, the tokens of service accounts,
// and the keys of pods' certificates.
func IsSecret(key wire.Key) bool {
	if key.Group == frondGroup {
		return key.Resource == tokenResource || key.Resource == podCertificateResource
	}
	return key.Group == "" && key.Resource == "secrets"
}

// tokenCache holds the last token of each projected volume in the store. A gateway that reboots offline mounts it again,
// even expired: its pod cannot reach an apiserver anyway, and must run.
type tokenCache struct {
	store *store.Store
	log   *zap.Logger
}

func newTokenCache(st *store.Store, log *zap.Logger) *tokenCache {
	return &tokenCache{store: st, log: log}
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

// tokenKey returns the key of a token request: the service account, and all of the request except the answer.
func tokenKey(info *request.RequestInfo, question *authenticationv1.TokenRequest) (wire.Key, error) {
	spec, err := json.Marshal(question.Spec)
	if err != nil {
		return wire.Key{}, fmt.Errorf("encode token request: %w", err)
	}
	sum := sha256.Sum256(spec)
	return wire.Key{
		Group: frondGroup, Resource: tokenResource, Namespace: info.Namespace,
		Name: info.Name + "." + hex.EncodeToString(sum[:16]),
	}, nil
}

func (t *tokenCache) saveAnswer(ctx context.Context, key wire.Key, question, answer *authenticationv1.TokenRequest) error {
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

// removeOrphans deletes the tokens of deleted pods. It runs with each new token, so their number stays close to what the
// node's pods need.
func (t *tokenCache) removeOrphans(ctx context.Context) error {
	entries, _ := t.store.List(frondGroup, tokenResource, "")
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

func (t *tokenCache) lastAnswer(key wire.Key) (*authenticationv1.TokenRequest, bool) {
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

// isNewest reports whether a token is the last one issued for a pod, in any of its volumes.
func (t *tokenCache) isNewest(pod wire.Key, uid, token string) bool {
	entries, _ := t.store.List(frondGroup, tokenResource, pod.Namespace)
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

// serveTokenRequest serves serviceaccounts/token: a call to the cloud or, while the cloud cannot be asked, the last answer.
func (s *Server) serveTokenRequest(w http.ResponseWriter, req *http.Request) {
	body, ok := s.readBody(w, req)
	if !ok {
		return
	}
	question, ok := decodeAs[*authenticationv1.TokenRequest](body)
	if !ok {
		writeError(w, req, apierrors.NewBadRequest("the body is not a TokenRequest"))
		return
	}
	info, _ := request.RequestInfoFrom(req.Context())
	key, err := tokenKey(info, question)
	if err != nil {
		writeError(w, req, err)
		return
	}
	reply, err := s.callCloud(req.Context(), newKubeRequest(req, body))
	switch {
	case err != nil, reply.Code >= http.StatusInternalServerError:
		if answer, ok := s.tokens.lastAnswer(key); ok {
			responsewriters.WriteObjectNegotiated(scheme.Codecs, negotiation.DefaultEndpointRestrictions,
				authenticationv1.SchemeGroupVersion, w, req, http.StatusCreated, answer, false)
			return
		}
		if err != nil {
			writeError(w, req, err)
			return
		}
	case reply.Code < http.StatusMultipleChoices:
		answer, ok := decodeAs[*authenticationv1.TokenRequest](reply.Body)
		if ok {
			err = s.tokens.saveAnswer(req.Context(), key, question, answer)
		}
		if !ok || err != nil {
			// The pod still gets its token; after a reboot without a link it will be missing.
			s.log.Warn("token not kept", zap.Stringer("key", key), zap.Bool("decoded", ok), zap.Error(err))
		}
	}
	writeReply(w, reply)
}

// decodeAs decodes an object in any encoding of Kubernetes.
func decodeAs[T runtime.Object](data []byte) (T, bool) {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		var none T
		return none, false
	}
	typed, ok := obj.(T)
	return typed, ok
}

package localapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/records"
	"github.com/frond-edge/frond/leaf/store"
)

// podCertificateResource is the resource name of the certificates of pods' volumes in the store, with their keys.
const podCertificateResource = "podcertificates"

// podCertificate is the stored form. Upstream's kubelet keeps keys in memory alone and creates new ones when it starts,
// which needs a signer; a gateway that boots without a link has none.
type podCertificate struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Pod    wire.Key `json:"pod"`
	PodUID string   `json:"podUID"`
	Key    []byte   `json:"key"`
	Chain  []byte   `json:"chain"`
}

func podCertificateKey(namespace, uid, projection string) wire.Key {
	return wire.Key{Group: records.Group, Resource: podCertificateResource, Namespace: namespace, Name: uid + "/" + projection}
}

// SavePodCertificate stores the newest key and certificates of one projection of a pod, until the pod is gone. Both are
// PEM. Saving what is already stored costs no write.
func (s *Server) SavePodCertificate(ctx context.Context, namespace, pod, uid, projection string, key, chain []byte) error {
	at := podCertificateKey(namespace, uid, projection)
	if last, ok := s.loadPodCertificate(at); ok && bytes.Equal(last.Key, key) && bytes.Equal(last.Chain, chain) {
		return nil
	}
	record := podCertificate{Pod: wire.Key{Resource: "pods", Namespace: namespace, Name: pod}, PodUID: uid, Key: key, Chain: chain}
	record.Metadata.Name = at.Name
	data, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode pod certificate: %w", err)
	}
	if _, err := s.store.Put(ctx, at, data, nil); err != nil {
		return fmt.Errorf("keep pod certificate: %w", err)
	}
	return s.sweepPodCertificates(ctx)
}

// LastPodCertificate returns the last saved key and certificates, expired or not, for use while the cloud cannot issue new
// ones. As with tokens, the pod has no better ones, and must run.
func (s *Server) LastPodCertificate(namespace, uid, projection string) (key, chain []byte, ok bool) {
	if s.isOnline() {
		return nil, nil, false
	}
	record, ok := s.loadPodCertificate(podCertificateKey(namespace, uid, projection))
	return record.Key, record.Chain, ok
}

func (s *Server) loadPodCertificate(at wire.Key) (podCertificate, bool) {
	entry, err := s.store.Get(at)
	if err != nil {
		return podCertificate{}, false
	}
	var record podCertificate
	if err := json.Unmarshal(entry.Object, &record); err != nil {
		s.log.Warn("unreadable pod certificate ignored", zap.Stringer("key", at), zap.Error(err))
		return podCertificate{}, false
	}
	return record, true
}

// sweepPodCertificates deletes the certificates of deleted pods. It runs with each new certificate, so their number stays
// close to what the node's pods need.
func (s *Server) sweepPodCertificates(ctx context.Context) error {
	entries, _ := s.store.List(records.Group, podCertificateResource, "")
	for _, e := range entries {
		if record, ok := s.loadPodCertificate(e.Key); ok {
			if pod, err := s.store.Get(record.Pod); err == nil && pod.UID == record.PodUID {
				continue
			}
		}
		if _, err := s.store.Delete(ctx, e.Key, "", nil); err != nil && !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("drop pod certificate: %w", err)
		}
	}
	return nil
}

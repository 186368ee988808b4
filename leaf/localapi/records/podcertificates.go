package records

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// PodCertificateResource is the resource name of the certificates of pods' volumes in the store, with their keys.
const PodCertificateResource = "podcertificates"

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

// PodCertificates keeps the certificates of pods' volumes in the store.
type PodCertificates struct {
	store *store.Store
	log   *zap.Logger
}

// NewPodCertificates creates PodCertificates over the store.
func NewPodCertificates(st *store.Store, log *zap.Logger) *PodCertificates {
	return &PodCertificates{store: st, log: log}
}

func podCertificateKey(namespace, uid, projection string) wire.Key {
	return wire.Key{Group: Group, Resource: PodCertificateResource, Namespace: namespace, Name: uid + "/" + projection}
}

// Save stores the newest key and certificates of one projection of a pod, until the pod is gone. Both are
// PEM. Saving what is already stored costs no write.
func (c *PodCertificates) Save(ctx context.Context, namespace, pod, uid, projection string, key, chain []byte) error {
	at := podCertificateKey(namespace, uid, projection)
	if last, ok := c.load(at); ok && bytes.Equal(last.Key, key) && bytes.Equal(last.Chain, chain) {
		return nil
	}
	record := podCertificate{Pod: wire.Key{Resource: "pods", Namespace: namespace, Name: pod}, PodUID: uid, Key: key, Chain: chain}
	record.Metadata.Name = at.Name
	data, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode pod certificate: %w", err)
	}
	if _, err := c.store.Put(ctx, at, data, nil); err != nil {
		return fmt.Errorf("keep pod certificate: %w", err)
	}
	return c.sweep(ctx)
}

// Last returns the last saved key and certificates, expired or not.
func (c *PodCertificates) Last(namespace, uid, projection string) (key, chain []byte, ok bool) {
	record, ok := c.load(podCertificateKey(namespace, uid, projection))
	return record.Key, record.Chain, ok
}

func (c *PodCertificates) load(at wire.Key) (podCertificate, bool) {
	entry, err := c.store.Get(at)
	if err != nil {
		return podCertificate{}, false
	}
	var record podCertificate
	if err := json.Unmarshal(entry.Object, &record); err != nil {
		c.log.Warn("unreadable pod certificate ignored", zap.Stringer("key", at), zap.Error(err))
		return podCertificate{}, false
	}
	return record, true
}

// sweep deletes the certificates of deleted pods. It runs with each new certificate, so their number stays
// close to what the node's pods need.
func (c *PodCertificates) sweep(ctx context.Context) error {
	entries, _ := c.store.List(Group, PodCertificateResource, "")
	for _, e := range entries {
		if record, ok := c.load(e.Key); ok {
			if pod, err := c.store.Get(record.Pod); err == nil && pod.UID == record.PodUID {
				continue
			}
		}
		if _, err := c.store.Delete(ctx, e.Key, "", nil); err != nil && !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("drop pod certificate: %w", err)
		}
	}
	return nil
}

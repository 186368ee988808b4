// Package catalog knows the kinds of the cluster from the cloud's latest answer, also after a restart without a link.
package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientdiscovery "k8s.io/client-go/discovery"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/cloudcall"
	"github.com/frond-edge/frond/leaf/localapi/discovery"
	"github.com/frond-edge/frond/leaf/localapi/records"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/store"
)

const (
	// aggregatedDiscovery is the form of discovery that describes all groups in two answers.
	aggregatedDiscovery = runtime.ContentTypeJSON + ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	// openAPIProto is the binary form of OpenAPI v3.
	openAPIProto = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
	// catalogMaxAge is how long the cloud's answer about its kinds counts as current, unless a request needs a kind that it
	// lacks: clients read all of it again each time they start.
	catalogMaxAge = 30 * time.Second
	// catalogMissMaxAge is the interval after which the cloud is asked again for a kind that was missing.
	catalogMissMaxAge = 2 * time.Second
	// apiDocumentResource is the resource name of the cloud's API descriptions in the store.
	apiDocumentResource = "memos"
	// maxAPIDocumentBytes and maxAPIDocuments limit them: the largest document of a Kubernetes API is about 1.3 MB, and it has about 60.
	maxAPIDocumentBytes = 2 << 20
	maxAPIDocuments     = 128
)

// apiDocument is the stored form of one answer of the cloud.
type apiDocument struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	ContentType string `json:"contentType"`
	Body        []byte `json:"body"`
}

// Catalog holds the kinds of the cluster, from the cloud's latest answer.
type Catalog struct {
	store       *store.Store
	cloud       *cloudcall.Client
	online      func() bool
	log         *zap.Logger
	refreshSlot chan struct{} // one token: its holder asks the cloud

	mu          sync.Mutex // guards all fields below
	refreshedAt time.Time
	kinds       map[schema.GroupVersionResource]metav1.APIResource
	documents   *discovery.Documents // nil until the cloud has answered once
	raw         map[string][]byte
}

// New reads the catalog of before a restart. online reports whether the cloud can be asked.
func New(st *store.Store, cloud *cloudcall.Client, online func() bool, log *zap.Logger) *Catalog {
	c := &Catalog{store: st, cloud: cloud, online: online, log: log, refreshSlot: make(chan struct{}, 1), raw: map[string][]byte{}}
	if err := c.loadStored(); err != nil && !errors.Is(err, store.ErrNotFound) {
		log.Warn("the remembered catalog of kinds is unreadable", zap.Error(err))
	}
	return c
}

// apiDocumentKey returns the store key of an answer; it depends on the request.
func apiDocumentKey(path, accept string) wire.Key {
	return wire.Key{Group: records.Group, Resource: apiDocumentResource, Name: path + " " + accept}
}

// fetchAPIDocument asks the cloud, as the node, for a description of its API. If the cloud cannot be asked, it returns the stored answer.
func (c *Catalog) fetchAPIDocument(ctx context.Context, path, query, accept string) (wire.KubeReply, error) {
	key := apiDocumentKey(path, accept)
	if !caller.Of(ctx).Trusted {
		leave, err := c.cloud.AcquireSlot(ctx)
		if err != nil {
			return wire.KubeReply{}, err
		}
		defer leave()
	}
	ctx = caller.AsNode(ctx) // API descriptions are not secret among the API's users
	var reply wire.KubeReply
	err := respond.Unreachable(wire.ErrOffline)
	if c.online() {
		reply, err = c.cloud.Call(ctx, wire.KubeRequest{Method: http.MethodGet, Path: path, Query: query, Accept: accept})
	}
	if err == nil && reply.Code < http.StatusInternalServerError {
		if reply.Code == http.StatusOK {
			c.saveAPIDocument(ctx, key, reply)
		}
		return reply, nil
	}
	if entry, getErr := c.store.Get(key); getErr == nil {
		var m apiDocument
		if json.Unmarshal(entry.Object, &m) == nil {
			return wire.KubeReply{Code: http.StatusOK, ContentType: m.ContentType, Body: m.Body}, nil
		}
	}
	if err == nil {
		return reply, nil
	}
	return reply, err
}

func (c *Catalog) saveAPIDocument(ctx context.Context, key wire.Key, reply wire.KubeReply) {
	m := apiDocument{ContentType: reply.ContentType, Body: reply.Body}
	m.Metadata.Name = key.Name
	data, err := json.Marshal(m)
	if err != nil || len(reply.Body) > maxAPIDocumentBytes {
		return
	}
	last, err := c.store.Get(key)
	held, _ := c.store.List(records.Group, apiDocumentResource, "")
	if err == nil && string(last.Object) == string(data) || err != nil && len(held) >= maxAPIDocuments {
		return
	}
	if _, err := c.store.Put(ctx, key, data, nil); err != nil {
		c.log.Warn("a description of the API is not kept over a restart", zap.String("path", key.Name), zap.Error(err))
	}
}

// refresh asks the cloud for all kinds, unless another request has just done so. If the cloud cannot be asked, the catalog
// stays unchanged.
func (c *Catalog) refresh(ctx context.Context, fresh time.Duration) {
	select {
	case c.refreshSlot <- struct{}{}:
		defer func() { <-c.refreshSlot }()
	case <-ctx.Done():
		return
	}
	c.mu.Lock()
	recent := !c.refreshedAt.IsZero() && time.Since(c.refreshedAt) < fresh
	c.mu.Unlock()
	if recent || !c.online() {
		return
	}
	c.mu.Lock()
	c.refreshedAt = time.Now()
	c.mu.Unlock()
	for _, path := range []string{"/api", "/apis"} {
		if _, err := c.fetchAPIDocument(ctx, path, "", aggregatedDiscovery); err != nil {
			return
		}
	}
	if err := c.loadStored(); err != nil {
		c.log.Warn("the catalog of kinds is unreadable", zap.Error(err))
	}
}

// loadStored reads the catalog from the store.
func (c *Catalog) loadStored() error {
	var all apidiscovery.APIGroupDiscoveryList
	raw := map[string][]byte{}
	for _, path := range []string{"/api", "/apis"} {
		entry, err := c.store.Get(apiDocumentKey(path, aggregatedDiscovery))
		if err != nil {
			return err
		}
		var m apiDocument
		var list apidiscovery.APIGroupDiscoveryList
		if err := json.Unmarshal(entry.Object, &m); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if err := json.Unmarshal(m.Body, &list); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if list.Kind != "APIGroupDiscoveryList" {
			return fmt.Errorf("read %s: it is a %q", path, list.Kind)
		}
		all.Items = append(all.Items, list.Items...)
		raw[path] = m.Body
	}
	groups, lists, _ := clientdiscovery.SplitGroupsAndResources(all)
	kinds := map[schema.GroupVersionResource]metav1.APIResource{}
	for gv, list := range lists {
		for _, r := range list.APIResources {
			if !strings.Contains(r.Name, "/") {
				kinds[gv.WithResource(r.Name)] = r
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds, c.raw, c.documents = kinds, raw, discovery.FromCluster(groups, lists)
	return nil
}

// FindKind returns the description of a kind; nil if the cluster does not have it. The error means that this is not known.
func (c *Catalog) FindKind(ctx context.Context, gvr schema.GroupVersionResource) (*metav1.APIResource, error) {
	look := func() (*metav1.APIResource, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r, ok := c.kinds[gvr]; ok {
			return &r, true
		}
		return nil, c.documents != nil
	}
	if r, _ := look(); r != nil {
		return r, nil
	}
	c.refresh(ctx, catalogMissMaxAge)
	r, known := look()
	if r == nil && (!known || !c.online()) {
		return nil, respond.RetryLater(fmt.Sprintf("this gateway does not know %s and cannot ask the cloud", gvr.GroupResource()))
	}
	return r, nil
}

// Serve serves the cluster's discovery and OpenAPI documents. It returns false if this gateway has never received them.
func (c *Catalog) Serve(w http.ResponseWriter, req *http.Request, path string) bool {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		return false
	}
	if strings.HasPrefix(path, "/openapi/v3") {
		accept := runtime.ContentTypeJSON // one of the existing forms, not any form that can be requested: answers are stored
		if strings.Contains(req.Header.Get("Accept"), openAPIProto) {
			accept = openAPIProto
		}
		reply, err := c.fetchAPIDocument(req.Context(), path, req.URL.RawQuery, accept)
		if err != nil {
			respond.Error(w, req, err)
			return true
		}
		respond.Write(w, reply)
		return true
	}
	c.refresh(req.Context(), catalogMaxAge)
	c.mu.Lock()
	browse, raw := c.documents, c.raw[path]
	c.mu.Unlock()
	if browse == nil {
		return false
	}
	if raw != nil && strings.Contains(strings.ReplaceAll(req.Header.Get("Accept"), " ", ""), "v=v2;as=APIGroupDiscoveryList") {
		respond.Write(w, wire.KubeReply{Code: http.StatusOK, ContentType: aggregatedDiscovery, Body: raw})
		return true
	}
	if browse.Documents[path] == nil {
		return false
	}
	browse.ServeDocument(w, req, path)
	return true
}

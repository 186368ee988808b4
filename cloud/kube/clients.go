package kube

import (
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/reports"
)

// Clients are the clients of one process, each made once. None limits its rate: the apiserver's own priority and
// fairness does, and reports are coalesced in the stream.
type Clients struct {
	// Config is the configuration of all clients, for parts that need a transport of their own. It must not be changed.
	Config *rest.Config
	// ReadRetry is Config whose reads wait for an apiserver that is unavailable; caches and watches use it.
	ReadRetry *rest.Config
	// Own acts with cloudcore's rights.
	Own kubernetes.Interface
	// AsNode acts as the node in the context of a request (reports.WithNode).
	AsNode kubernetes.Interface
	// Metadata reads objects of any kind without their content, with cloudcore's rights.
	Metadata metadata.Interface
}

// NewClients creates the clients of an apiserver. classic says that nodes are impersonated by the classic verb.
func NewClients(config *rest.Config, classic bool) (*Clients, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = names.ManagerCloudcore
	config.QPS = -1
	own, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	asNode, err := kubernetes.NewForConfig(reports.Impersonating(config, classic))
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	return &Clients{Config: config, ReadRetry: withReadRetry(config), Own: own, AsNode: asNode, Metadata: objects}, nil
}

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule { return append(eventRules(), tokenKeyRules()...) }

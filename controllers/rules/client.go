package rules

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/rules"
)

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{rules.Group}, Resources: []string{rules.RulesResource, rules.RuleEndpointsResource}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{rules.Group}, Resources: []string{rules.RulesResource + "/status"}, Verbs: []string{"update"}},
	}
}

// NewClient returns a client of Rules and RuleEndpoints.
func NewClient(config *rest.Config) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := rules.AddToScheme(scheme); err != nil {
		return nil, err
	}
	version := rules.GroupVersion()
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion, config.ContentType = "/apis", &version, runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of rules: %w", err)
	}
	return client, nil
}

// newInformer follows all objects of a resource. A missing kind means that there are none.
func newInformer(client rest.Interface, resource string, kind runtime.Object, handler toolscache.ResourceEventHandler) (toolscache.SharedIndexInformer, error) {
	source := toolscache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, fields.Everything())
	informer := toolscache.NewSharedIndexInformer(source, kind, 0, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *toolscache.Reflector, err error) {
		if !apierrors.IsNotFound(err) {
			toolscache.DefaultWatchErrorHandler(ctx, r, err)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", resource, err)
	}
	if _, err := informer.AddEventHandler(handler); err != nil {
		return nil, fmt.Errorf("follow %s: %w", resource, err)
	}
	return informer, nil
}

// putStatus writes the status of a rule, on the condition that nobody has written the rule meanwhile.
func putStatus(ctx context.Context, client rest.Interface, rule *rules.Rule) error {
	err := client.Put().Resource(rules.RulesResource).Namespace(rule.Namespace).Name(rule.Name).SubResource("status").Body(rule).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}

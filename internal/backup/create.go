package backup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/buildinfo"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/internal/install/identities"
)

// The ConfigMap of package controllers/ports with the ports of gateways at the cloudcores; not every installation has it.
const (
	portsNamespace = "kube-system"
	portsName      = "frond-node-ports"
)

// clusterClients are clients of a cluster without client-side rate limits.
type clusterClients struct {
	config     *rest.Config
	kube       kubernetes.Interface
	identities dynamic.ResourceInterface
	objects    dynamic.Interface
}

func newClients(cfg *rest.Config) (clusterClients, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return clusterClients{}, fmt.Errorf("reach the cluster: %w", err)
	}
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return clusterClients{}, fmt.Errorf("reach the cluster: %w", err)
	}
	return clusterClients{config: cfg, kube: kube, objects: objects, identities: objects.Resource(identity.GroupVersionResource())}, nil
}

// clusterUID identifies the cluster, as for cloudcore.
func clusterUID(ctx context.Context, c clusterClients) (string, error) {
	ns, err := c.kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read which cluster this is: %w", err)
	}
	return string(ns.UID), nil
}

// Create reads everything that a backup holds. An incomplete installation is an error: its backup could not be restored.
func Create(ctx context.Context, cfg *rest.Config, now time.Time) (Content, error) {
	k, err := newClients(cfg)
	if err != nil {
		return Content{}, err
	}
	settings, err := install.ReadSettings(ctx, k.kube)
	if err != nil {
		return Content{}, err
	}
	c := Content{Header: Header{APIVersion: APIVersion, Kind: backupKind, Created: now.UTC().Truncate(time.Second), FrondVersion: buildinfo.Version()}}
	if c.ClusterUID, err = clusterUID(ctx, k); err != nil {
		return c, err
	}
	if err := readKeys(ctx, k, settings, &c); err != nil {
		return c, err
	}
	if err := c.checkKeys(now); err != nil {
		return c, err
	}
	c.CAHash = settings.CAHash
	c.Identities, err = readIdentities(ctx, k)
	return c, err
}

// RecordTime records the time of a backup in the cluster, so that frond init can report its age.
func RecordTime(ctx context.Context, cfg *rest.Config, made time.Time) error {
	k, err := newClients(cfg)
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, names.AnnotationLastBackup, made.UTC().Format(time.RFC3339))
	if _, err := k.kube.CoreV1().Namespaces().Patch(ctx, names.Namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("write the time of the backup to the namespace %s: %w", names.Namespace, err)
	}
	return nil
}

func readKeys(ctx context.Context, c clusterClients, settings install.Settings, into *Content) error {
	for _, name := range settings.Folders() {
		o, err := c.kube.CoreV1().Secrets(names.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read Secret %s: %w", name, err)
		}
		bare := corev1.Secret{ObjectMeta: bareMeta(o.ObjectMeta), Type: o.Type, Data: o.Data}
		into.Secrets = append(into.Secrets, bare)
	}
	for _, at := range []metav1.ObjectMeta{
		{Namespace: names.Namespace, Name: install.CloudcoreName},
		{Namespace: names.Namespace, Name: install.BundleName},
		{Namespace: portsNamespace, Name: portsName},
		{Namespace: names.Namespace, Name: install.SettingsName}, // last, as frond init writes it: it marks a complete installation
	} {
		o, err := c.kube.CoreV1().ConfigMaps(at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && at.Name == portsName {
			continue
		}
		if err != nil {
			return fmt.Errorf("read ConfigMap %s: %w", at.Name, err)
		}
		bare := corev1.ConfigMap{ObjectMeta: bareMeta(o.ObjectMeta), Data: o.Data, BinaryData: o.BinaryData}
		into.ConfigMaps = append(into.ConfigMaps, bare)
	}
	return nil
}

// installFiles returns the keys and certificates of a backup as Files of package install.
func (c Content) installFiles() install.Files {
	files := install.Files{}
	for _, o := range c.Secrets {
		files.Put(o.Name, o.Data)
	}
	return files
}

// checkKeys finds keys that are torn, missing, or do not match their certificate.
func (c Content) checkKeys(now time.Time) error {
	_, changes, err := install.Fill(c.installFiles(), install.Spec{}, now)
	if err != nil {
		return err
	}
	var missing []string
	for _, change := range changes {
		if change.Reason == install.ReasonMissing {
			missing = append(missing, change.File)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the installation lacks %s: frond init creates what is missing; if there is a backup that has it, restore that first", strings.Join(missing, ", "))
	}
	return nil
}

// readIdentities lists all gateways. A cluster without the custom resource has none.
func readIdentities(ctx context.Context, c clusterClients) (all []identity.NodeIdentity, err error) {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.identities.List(ctx, o)
	})
	err = pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		item, ok := o.(*unstructured.Unstructured)
		if !ok {
			return errors.New("it is of an unknown type")
		}
		id, err := identities.Decode(item)
		if err != nil {
			return err
		}
		id.ObjectMeta, id.TypeMeta = bareMeta(id.ObjectMeta), metav1.TypeMeta{}
		all = append(all, id)
		return nil
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("list NodeIdentities: %w", err)
	}
	return all, nil
}

// bareMeta returns the client-written part of an object's metadata. It drops a confirmed deletion, which must not apply to the restored object.
func bareMeta(o metav1.ObjectMeta) metav1.ObjectMeta {
	annotations := maps.Clone(o.Annotations)
	delete(annotations, names.AnnotationConfirmDeletion)
	if len(annotations) == 0 {
		annotations = nil
	}
	return metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, Labels: o.Labels, Annotations: annotations}
}

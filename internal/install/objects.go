package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/deploy/policy"
	"github.com/frond-edge/frond/deploy/rbac"
)

// BundleName is the ConfigMap with the CAs of the hub, for clients that verify its certificates.
const BundleName = "frond-hub-ca"

// objectLabels are the labels of all objects of this package.
func objectLabels() map[string]string {
	return map[string]string{"app.kubernetes.io/part-of": "frond", "app.kubernetes.io/managed-by": names.ManagerInstall}
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: names.Namespace, Name: name, Labels: objectLabels()},
		Data:       data,
	}
}

func newSecret(name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: names.Namespace, Name: name, Labels: objectLabels()},
		Type:       corev1.SecretTypeOpaque,
		Data:       data,
	}
}

// folderNames are the Secrets that hold files. The CA's is the first: a run that loses the race for it starts again.
func (f Files) folderNames() []string {
	folders := []string{FolderCA}
	for file := range f {
		if folder, _, _ := strings.Cut(file, "/"); !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
	}
	slices.Sort(folders[1:])
	return folders
}

// entriesOf returns the entries of a folder.
func (f Files) entriesOf(folder string) map[string][]byte {
	entries := map[string][]byte{}
	for file, data := range f {
		if in, entry, _ := strings.Cut(file, "/"); in == folder {
			entries[entry] = data
		}
	}
	return entries
}

// Put adds the entries of a Secret.
func (f Files) Put(folder string, entries map[string][]byte) {
	for entry, data := range entries {
		f[folder+"/"+entry] = data
	}
}

// loadManifests returns the namespace, cloudcore's roles, Frond's custom resource definitions and its admission policies, in this order;
// none of them for keys only.
func loadManifests(s Settings, keysOnly bool) ([]*unstructured.Unstructured, error) {
	if keysOnly {
		return nil, nil
	}
	definitions, err := crd.Definitions()
	if err != nil {
		return nil, err
	}
	texts := append([][]byte{[]byte(rbac.Cloudcore())}, definitions...)
	for _, text := range policy.Manifests() {
		texts = append(texts, []byte(text))
	}
	all, err := decodeManifests(texts)
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		if o.GetKind() == policyKind && o.GetName() == policy.BindingsPolicy {
			if err := setSchedulers(s, o); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

const policyKind = "ValidatingAdmissionPolicy"

// setSchedulers writes the users that may bind pods of protected namespaces into a policy.
func setSchedulers(s Settings, o *unstructured.Unstructured) error {
	var quoted []string
	for _, user := range slices.Compact(slices.Sorted(slices.Values(append([]string{policy.DefaultScheduler}, s.Schedulers...)))) {
		quoted = append(quoted, strconv.Quote(user))
	}
	variables, _, err := unstructured.NestedSlice(o.Object, "spec", "variables")
	if err != nil {
		return fmt.Errorf("understand %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	for _, v := range variables {
		if variable, ok := v.(map[string]any); ok && variable["name"] == policy.SchedulersVariable {
			variable["expression"] = "[" + strings.Join(quoted, ", ") + "]"
			return unstructured.SetNestedSlice(o.Object, variables, "spec", "variables")
		}
	}
	return fmt.Errorf("%s %s has no variable %s", o.GetKind(), o.GetName(), policy.SchedulersVariable)
}

func decodeManifests(texts [][]byte) (all []*unstructured.Unstructured, err error) {
	for _, text := range texts {
		for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), decoderBuffer); ; {
			o := &unstructured.Unstructured{}
			err := decoder.Decode(&o.Object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("understand a manifest: %w", err)
			}
			if len(o.Object) > 0 {
				all = append(all, o)
			}
		}
	}
	return all, nil
}

// decoderBuffer is the number of bytes by which the decoder tells YAML from JSON.
const decoderBuffer = 4096

// toUnstructured converts an object to its applied form: without fields that the caller did not set.
func toUnstructured(o runtime.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
	return &unstructured.Unstructured{Object: fields}, nil
}

// resourceFor returns the resource of a kind. The kinds here have regular names.
func resourceFor(kind schema.GroupVersionKind) schema.GroupVersionResource {
	plural, _ := meta.UnsafeGuessKindToResource(kind)
	return plural
}

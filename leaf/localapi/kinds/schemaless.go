package kinds

import (
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// schemalessSerializer is the encoding of kinds without Go types in this program, mainly custom resources: JSON and YAML,
// as in an apiserver. All other objects that a response may hold, such as a status or a table, are encoded as usual.
type schemalessSerializer struct{ runtime.NegotiatedSerializer }

// NewSchemalessSerializer returns the serializer of objects without a Go type.
func NewSchemalessSerializer() runtime.NegotiatedSerializer {
	return schemalessSerializer{scheme.Codecs}
}

// SupportedMediaTypes omits protobuf and other encodings that need a type.
func (s schemalessSerializer) SupportedMediaTypes() []runtime.SerializerInfo {
	var list []runtime.SerializerInfo
	for _, info := range s.NegotiatedSerializer.SupportedMediaTypes() {
		if info.EncodesAsText {
			list = append(list, info)
		}
	}
	return list
}

// EncoderForVersion encodes an object without a type unchanged, in its delivered version, and the frame of a watch's event,
// which has the same form in all groups.
func (s schemalessSerializer) EncoderForVersion(e runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	return schemalessEncoder{raw: e, Encoder: s.NegotiatedSerializer.EncoderForVersion(e, gv)}
}

type schemalessEncoder struct {
	runtime.Encoder
	raw runtime.Encoder
}

func (a schemalessEncoder) Encode(obj runtime.Object, w io.Writer) error {
	switch obj.(type) {
	case *unstructured.Unstructured, *unstructured.UnstructuredList, *metav1.WatchEvent:
		return a.raw.Encode(obj, w)
	}
	return a.Encoder.Encode(obj, w)
}

// Identifier separates the cached encodings of this encoder from others.
func (a schemalessEncoder) Identifier() runtime.Identifier {
	return "schemaless " + a.Encoder.Identifier()
}

// SetType derives the constructors of objects and lists from the kind, and the singular name unless it is set: with a Go type if this
// program has one, and otherwise schemaless.
func (r *Resource) SetType() {
	if r.Singular == "" {
		r.Singular = strings.ToLower(r.Kind)
	}
	kind, list := r.GVK(), r.GVR.GroupVersion().WithKind(r.Kind+"List")
	if scheme.Scheme.Recognizes(kind) && scheme.Scheme.Recognizes(list) {
		r.Object, r.List = typedConstructor(kind), typedConstructor(list)
		return
	}
	r.Schemaless = true
	r.Object = func() runtime.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(kind)
		return u
	}
	r.List = func() runtime.Object {
		u := &unstructured.UnstructuredList{}
		u.SetGroupVersionKind(list)
		return u
	}
}

func typedConstructor(kind schema.GroupVersionKind) func() runtime.Object {
	return func() runtime.Object {
		obj, err := scheme.Scheme.New(kind)
		if err != nil {
			panic(err) // it is registered: SetType has checked
		}
		return obj
	}
}

package kinds

import (
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
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

package forward

import (
	"bytes"
	"encoding/json"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/wire"
)

// A client that reads an object here, changes it and writes it back sends the version that it read, which is the store's.
// The write goes to the cloud, where that version has no meaning: it is replaced by the cloud's version of the same state.
// A version that is no longer the object's passes unchanged, and the cloud reports a conflict, as it should. Versions in
// answers are replaced if the answer is of the stored state: a client that compares an object with a dry run sees no
// difference in versions.
//
// Both versions are numbers of ranges that do not overlap (kinds.LocalVersionBase). So a client that uses the version of an
// earlier answer of the cloud gets a conflict and overwrites nothing, at any revision of the store.

// versionPair is the local and the cloud's version of one state of an object.
type versionPair struct{ local, cloud string }

// useCloudVersion replaces the local version in a request by the cloud's.
func (p versionPair) useCloudVersion(r *wire.KubeRequest) {
	if len(r.Body) == 0 || !bytes.Contains(r.Body, []byte(p.local)) {
		return
	}
	switch r.ContentType {
	case string(types.JSONPatchType):
		var steps []map[string]any
		if decodeNumbers(r.Body, &steps) != nil {
			return
		}
		for _, step := range steps {
			if step["path"] == "/metadata/resourceVersion" && step["value"] == p.local {
				step["value"] = p.cloud
			}
		}
		r.Body = encodeOr(steps, r.Body)
	case runtime.ContentTypeProtobuf:
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(r.Body, nil, nil)
		if err != nil {
			return // kinds unknown to this program come in JSON
		}
		data, err := runtime.Encode(unversionedEncoder(), obj)
		if body, changed := replaceVersion(data, p.local, p.cloud); err == nil && changed {
			r.Body, r.ContentType = body, runtime.ContentTypeJSON
		}
	default:
		r.Body, _ = replaceVersion(r.Body, p.local, p.cloud)
	}
}

// unversionedEncoder returns a JSON encoder for objects that carry their own API version.
func unversionedEncoder() runtime.Encoder {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return info.Serializer
}

// useLocalVersion replaces the cloud's version by the local one in an answer that is of the stored state.
func (p versionPair) useLocalVersion(r *wire.KubeReply) {
	if r.Code < http.StatusMultipleChoices && bytes.Contains(r.Body, []byte(p.cloud)) {
		r.Body, _ = replaceVersion(r.Body, p.cloud, p.local)
	}
}

// replaceVersion replaces an object's version, or that of a deletion's precondition. Anything but JSON stays unchanged.
func replaceVersion(data []byte, from, to string) ([]byte, bool) {
	var obj map[string]any
	if decodeNumbers(data, &obj) != nil {
		return data, false
	}
	changed := false
	for _, holder := range []string{"metadata", "preconditions"} {
		if m, ok := obj[holder].(map[string]any); ok && m["resourceVersion"] == from {
			m["resourceVersion"] = to
			changed = true
		}
	}
	if !changed {
		return data, false
	}
	return encodeOr(obj, data), true
}

func decodeNumbers(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // a large integer must not become a float
	return d.Decode(v)
}

func encodeOr(v any, otherwise []byte) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return otherwise // it was JSON before
	}
	return data
}

package message

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

// exactFloat is the largest integer up to which a 32-bit float holds each one.
const exactFloat = 1 << 24

// mergedConfig returns a configData: the model's keys, each replaced by the device's where it has the key. It is never nil.
func (n *notes) mergedConfig(field string, model, device *runtime.RawExtension) *dmipb.CustomizedValue {
	merged := n.object(field, model)
	maps.Copy(merged, n.object(field, device))
	return &dmipb.CustomizedValue{Data: n.anyValues(field, merged)}
}

// object decodes a JSON object. Numbers keep their digits.
func (n *notes) object(field string, raw *runtime.RawExtension) map[string]any {
	object := map[string]any{}
	if raw == nil || len(raw.Raw) == 0 || string(raw.Raw) == "null" {
		return object
	}
	decoder := json.NewDecoder(bytes.NewReader(raw.Raw))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil {
		n.add(ReasonConfigInvalid, "configData of %s is no JSON object", field)
		return map[string]any{}
	}
	return object
}

func (n *notes) anyValues(field string, object map[string]any) map[string]*anypb.Any {
	values := map[string]*anypb.Any{}
	for _, key := range slices.Sorted(maps.Keys(object)) { // the notes in the same order each time
		value := n.anyValue(fmt.Sprintf("%q in configData of %s", key, field), object[key])
		if value == nil {
			continue
		}
		wrapped, err := anypb.New(value)
		if err != nil {
			n.add(ReasonConfigInvalid, "%q in configData of %s cannot be encoded: %v", key, field, err)
			continue
		}
		values[key] = wrapped
	}
	return values
}

// anyValue wraps a JSON value as one of the types that KubeEdge's mappers decode; they drop others without a word.
func (n *notes) anyValue(field string, value any) proto.Message {
	switch v := value.(type) {
	case string:
		return wrapperspb.String(v)
	case bool:
		return wrapperspb.Bool(v)
	case json.Number:
		return number(v)
	case nil:
		n.add(ReasonConfigInvalid, "%s is null", field)
		return nil
	default:
		text, err := json.Marshal(v)
		if err != nil {
			n.add(ReasonConfigInvalid, "%s cannot be encoded: %v", field, err)
			return nil
		}
		n.add(ReasonConfigNested, "%s is no plain value; the mapper gets it as JSON text", field)
		return wrapperspb.String(string(text))
	}
}

// number is a 32-bit float, as from KubeEdge, unless that would change an integer.
func number(v json.Number) proto.Message {
	if i, err := v.Int64(); err == nil && (i > exactFloat || i < -exactFloat) {
		return wrapperspb.Int64(i)
	}
	f, _ := v.Float64() // what is out of range is infinite, and the largest float below
	return wrapperspb.Float(float32(max(-math.MaxFloat32, min(math.MaxFloat32, f))))
}

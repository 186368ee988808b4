package devicetwin

import (
	"strconv"
	"strings"

	"github.com/frond-edge/frond/api/devices"
)

// typeOf returns a type in the words of a DeviceModel. The words of KubeEdge's twin are the same in small letters, and integer.
func typeOf(word string) string {
	switch upper := strings.ToUpper(word); upper {
	case "INTEGER":
		return "INT"
	case "DOUBLE":
		return "FLOAT"
	default:
		return upper
	}
}

// fits reports whether a value is of a type. Each value is of an unknown type; only the text types have an empty one.
func fits(word, value string) bool {
	var err error
	switch typeOf(word) {
	case "INT":
		_, err = strconv.ParseInt(value, 10, 64)
	case "FLOAT":
		_, err = strconv.ParseFloat(value, 64)
	case "BOOLEAN":
		_, err = strconv.ParseBool(value)
	}
	return err == nil
}

// same reports whether two values of a type are equal, also if they are written differently: 30 and 30.0.
func same(word, a, b string) bool {
	if a == b {
		return true
	}
	switch typeOf(word) {
	case "INT":
		x, errX := strconv.ParseInt(a, 10, 64)
		y, errY := strconv.ParseInt(b, 10, 64)
		return errX == nil && errY == nil && x == y
	case "FLOAT":
		x, errX := strconv.ParseFloat(a, 64)
		y, errY := strconv.ParseFloat(b, 64)
		return errX == nil && errY == nil && x == y
	case "BOOLEAN":
		x, errX := strconv.ParseBool(a)
		y, errY := strconv.ParseBool(b)
		return errX == nil && errY == nil && x == y
	default:
		return false
	}
}

// inRange reports whether a number is within the bounds of its model. A bound that is no number is none, as everywhere in KubeEdge.
func inRange(p *devices.ModelProperty, value string) bool {
	if t := typeOf(p.Type); t != "INT" && t != "FLOAT" {
		return true
	}
	v, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return false
	}
	if least, err := strconv.ParseFloat(p.Minimum, 64); err == nil && !(v >= least) { // NaN is in no range
		return false
	}
	if most, err := strconv.ParseFloat(p.Maximum, 64); err == nil && !(v <= most) {
		return false
	}
	return true
}

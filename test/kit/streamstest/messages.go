package streamstest

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// ObjectVersion returns the version in an object's content.
func ObjectVersion(object string) string {
	v, _, _ := strings.Cut(strings.TrimPrefix(object, `{"v":"`), `"`)
	return v
}

// LargeMessage returns an object with the given number of poorly compressible bytes.
func LargeMessage(name, version string, bytes int) wire.Message {
	noise := make([]byte, bytes/4*3)
	source := rand.NewChaCha8([32]byte{})
	_, _ = source.Read(noise) // never fails
	m := DesiredMessage(name, version)
	m.Object = fmt.Appendf(nil, `{"v":%q,"noise":%q}`, version, base64.StdEncoding.EncodeToString(noise))
	return m
}

// TombstoneMessage returns the deletion of a ConfigMap of a node.
func TombstoneMessage(name string) wire.Message {
	return wire.Message{Node: "edge.1", Key: ConfigMapKey(name), Op: wire.Delete, UID: "uid-" + name, Version: "x", Time: time.Now()}
}

// DesiredMessage returns a version of a ConfigMap of a node.
func DesiredMessage(name, version string) wire.Message {
	return wire.Message{
		Node: "edge.1", Key: ConfigMapKey(name), Op: wire.Apply, UID: "uid-" + name, Version: version, Time: time.Now(),
		Object: fmt.Appendf(nil, `{"v":%q}`, version),
	}
}

// ConfigMapKey returns the key of a ConfigMap in the namespace default.
func ConfigMapKey(name string) wire.Key {
	return wire.Key{Resource: "configmaps", Namespace: "default", Name: name}
}

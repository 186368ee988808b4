// Package mqtt has the topics and payloads that KubeEdge's MQTT apps and mappers use, as pure codecs.
//
// It decides what is well formed: sizes, names, characters, words. Whether a device exists and a value fits it is decided by devicetwin. Decoding
// never panics, and what was decoded encodes to a payload that decodes to the same. Times are milliseconds since 1970.
package mqtt

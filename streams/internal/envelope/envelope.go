// Package envelope encodes a wire.Message as headers and payload of a NATS message, validates what it decodes, and stores what cannot be
// decoded as a dead letter.
package envelope

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// The headers of an envelope. The payload is the object's JSON, so that the `nats` command shows it unchanged.
const (
	headerVersion  = "Frond-Version"
	HeaderOp       = "Frond-Op"
	headerUID      = "Frond-UID"
	headerRV       = "Frond-RV"
	headerCluster  = "Frond-Cluster"
	HeaderStore    = "Frond-Store"
	HeaderOrder    = "Frond-Order"
	headerDigest   = "Frond-Digest"
	headerLeaving  = "Frond-Leaving"
	headerAcked    = "Frond-Acked"
	HeaderTime     = "Frond-Time"
	headerEncoding = "Content-Encoding"
	headerReason   = "Frond-Reason"
	headerSubject  = "Frond-Subject"

	envelopeVersion = "1"
	encodingZstd    = "zstd"
)

const (
	// maxObject bounds an object after decompression, whatever the envelope claims.
	maxObject = topology.MaxMessage
	// maxHeaderValue bounds each header; the longest Kubernetes value here is a name of 253 bytes.
	maxHeaderValue = 1024
	// maxDepth bounds nesting: CRDs of real charts stay below 40, and encoding/json recurses.
	maxDepth = 128
	// compressAbove is the size from which zstd pays on a link: most ConfigMaps stay readable for the `nats` command.
	compressAbove = 32 << 10
)

// Codec compresses and decompresses envelopes. Both halves are safe for concurrent use.
type Codec struct {
	encoder *zstd.Encoder
	decoder *zstd.Decoder
}

// NewCodec returns a codec. It may be used by several goroutines.
func NewCodec() (*Codec, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(topology.MiB), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("zstd encoder: %w", err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxObject), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("zstd decoder: %w", err)
	}
	return &Codec{encoder: enc, decoder: dec}, nil
}

// Encode builds the NATS message of m on the given subject.
func (c *Codec) Encode(subj string, m wire.Message) (*nats.Msg, error) {
	if len(m.Object) > maxObject {
		return nil, fmt.Errorf("%w: object of %d bytes, at most %d", wire.ErrPermanent, len(m.Object), maxObject)
	}
	msg := &nats.Msg{Subject: subj, Data: m.Object, Header: nats.Header{
		headerVersion: {envelopeVersion},
		HeaderOp:      {string(m.Op)},
		HeaderTime:    {m.Time.UTC().Format(time.RFC3339Nano)},
	}}
	for key, value := range map[string]string{
		headerUID: m.UID, headerRV: m.Version, headerCluster: m.ClusterEpoch, HeaderStore: m.StoreEpoch, headerDigest: m.Digest,
		headerLeaving: string(m.DeletionReason), headerAcked: m.Acked,
	} {
		if value != "" {
			msg.Header[key] = []string{value}
		}
	}
	if m.Order != 0 {
		msg.Header[HeaderOrder] = []string{strconv.FormatUint(m.Order, 10)}
	}
	if len(m.Object) > compressAbove {
		msg.Data = c.encoder.EncodeAll(m.Object, nil)
		msg.Header[headerEncoding] = []string{encodingZstd}
	}
	return msg, nil
}

// Decode reads an envelope that arrived on an object's subject. Every error wraps wire.ErrPermanent: the same bytes will never become
// valid. It returns the key and node of the subject even with an error, if the subject can be parsed.
func (c *Codec) Decode(subj string, header nats.Header, data []byte) (wire.Message, error) {
	m, err := DecodeHeader(subj, header)
	if err != nil {
		return m, err
	}
	switch m.Op {
	case wire.Delete:
		if len(data) == 0 {
			return m, nil
		}
		if strings.HasPrefix(subj, string(subject.Desired)) {
			return m, PermanentErrorf("a tombstone with %d bytes of object", len(data))
		}
	case wire.Apply:
	default:
		return m, PermanentErrorf("operation %.40q is unknown", m.Op)
	}
	if m.Object, err = c.decodePayload(header.Get(headerEncoding), data); err != nil {
		return m, err
	}
	return m, CheckObject(m.Object)
}

// DecodeHeader decodes everything except the payload.
func DecodeHeader(subj string, header nats.Header) (wire.Message, error) {
	var m wire.Message
	_, node, key, err := subject.Parse(subj)
	if err != nil {
		return m, PermanentErrorf("%v", err)
	}
	m.Node, m.Key = node, key
	for name, values := range header {
		if len(values) != 0 && len(values[0]) > maxHeaderValue {
			return m, PermanentErrorf("header %.40q of %d bytes, at most %d", name, len(values[0]), maxHeaderValue)
		}
	}
	if v := header.Get(headerVersion); v != envelopeVersion {
		return m, PermanentErrorf("envelope version %.40q is unknown, this one reads %q", v, envelopeVersion)
	}
	m.Op = wire.Operation(header.Get(HeaderOp))
	m.UID, m.Version = header.Get(headerUID), header.Get(headerRV)
	m.ClusterEpoch, m.StoreEpoch, m.Digest = header.Get(headerCluster), header.Get(HeaderStore), header.Get(headerDigest)
	m.DeletionReason, m.Acked = wire.DeletionReason(header.Get(headerLeaving)), header.Get(headerAcked)
	if s := header.Get(HeaderOrder); s != "" {
		if m.Order, err = strconv.ParseUint(s, 10, 64); err != nil {
			return m, PermanentErrorf("header %s: %v", HeaderOrder, err)
		}
	}
	if m.Time, err = time.Parse(time.RFC3339Nano, header.Get(HeaderTime)); err != nil {
		return m, PermanentErrorf("header %s: %v", HeaderTime, err)
	}
	return m, nil
}

// decodePayload returns the object's JSON.
func (c *Codec) decodePayload(encoding string, data []byte) ([]byte, error) {
	switch encoding {
	case "":
	case encodingZstd:
		var err error
		if data, err = c.decoder.DecodeAll(data, nil); err != nil {
			return nil, PermanentErrorf("payload: %v", err)
		}
	default:
		return nil, PermanentErrorf("content encoding %.40q is unknown", encoding)
	}
	if len(data) > maxObject {
		return nil, PermanentErrorf("object of %d bytes, at most %d", len(data), maxObject)
	}
	return data, nil
}

// CheckObject accepts exactly one JSON object of bounded depth.
func CheckObject(data []byte) error {
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return PermanentErrorf("payload is not a JSON object: %.40q", data)
	}
	if nestingDepth(data) > maxDepth {
		return PermanentErrorf("object nested deeper than %d", maxDepth)
	}
	if !json.Valid(data) {
		return PermanentErrorf("payload is not valid JSON: %.40q", data)
	}
	return nil
}

// nestingDepth returns the deepest nesting of brackets outside strings, without recursion.
func nestingDepth(data []byte) int {
	deepest, now, quoted := 0, 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}

// PermanentErrorf returns an error that wraps wire.ErrPermanent.
func PermanentErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", wire.ErrPermanent, fmt.Sprintf(format, args...))
}

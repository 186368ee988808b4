package lines

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/frond-edge/frond/api/wire"
)

// Sample is one value of one property of a device.
type Sample struct {
	Namespace, Device, Property string
	// Value is the text that the device gave.
	Value string
	// DeviceTime is the device's own time; zero where it gave none.
	DeviceTime time.Time
	// GatewayTime is when the gateway had the value, by its own clock; ClockSynced says whether that clock was synchronized.
	GatewayTime time.Time
	ClockSynced bool
}

const (
	// MaxValue bounds a value, maxName a property's name; KubeEdge's MQTT topics and twins have the same limits here (package broker).
	MaxValue = 4 << 10
	maxName  = 128
	// MaxLines bounds the samples of one request: JetStream stores at most 1,000 messages atomically.
	MaxLines = 1000
	// MaxDecoded bounds the lines of one request when they are decompressed.
	MaxDecoded = 2 << 20
)

// Validate refuses, wrapped in wire.ErrPermanent, a sample that no device of Kubernetes can have.
func (s *Sample) Validate() error {
	for _, problem := range validation.IsDNS1123Label(s.Namespace) {
		return fmt.Errorf("%w: namespace %.80q: %s", wire.ErrPermanent, s.Namespace, problem)
	}
	for _, problem := range validation.IsDNS1123Subdomain(s.Device) {
		return fmt.Errorf("%w: device %.80q: %s", wire.ErrPermanent, s.Device, problem)
	}
	switch {
	case s.Property == "" || len(s.Property) > maxName:
		return fmt.Errorf("%w: name of a property of %d bytes, want 1 to %d", wire.ErrPermanent, len(s.Property), maxName)
	case len(s.Value) > MaxValue:
		return fmt.Errorf("%w: value of %d bytes, at most %d", wire.ErrPermanent, len(s.Value), MaxValue)
	}
	return nil
}

// Line is a stored sample or message: one line of JSON. Times are in milliseconds since 1970.
type Line struct {
	// Number is the sample's number at its node, Previous that of the sample of the same device before it, 0 where it is not known.
	Number      uint64 `json:"n"`
	Previous    uint64 `json:"l,omitempty"`
	Namespace   string `json:"s,omitempty"`
	Device      string `json:"d,omitempty"`
	Property    string `json:"p,omitempty"`
	Value       string `json:"v,omitempty"`
	DeviceTime  int64  `json:"t,omitempty"`
	GatewayTime int64  `json:"g"`
	ClockSynced bool   `json:"c,omitempty"`
	// Of a message.
	Topic   string `json:"m,omitempty"`
	Payload []byte `json:"b,omitempty"`
	Broker  string `json:"f,omitempty"`
	User    string `json:"u,omitempty"`
}

// NewLine returns the line of a sample, without its numbers.
func NewLine(s *Sample) Line {
	l := Line{
		Namespace: s.Namespace, Device: s.Device, Property: s.Property, Value: s.Value,
		GatewayTime: s.GatewayTime.UnixMilli(), ClockSynced: s.ClockSynced,
	}
	if !s.DeviceTime.IsZero() {
		l.DeviceTime = s.DeviceTime.UnixMilli()
	}
	return l
}

// sample is the inverse of NewLine.
func (l *Line) sample() Sample {
	s := Sample{
		Namespace: l.Namespace, Device: l.Device, Property: l.Property, Value: l.Value,
		GatewayTime: time.UnixMilli(l.GatewayTime), ClockSynced: l.ClockSynced,
	}
	if l.DeviceTime != 0 {
		s.DeviceTime = time.UnixMilli(l.DeviceTime)
	}
	return s
}

// Codec compresses lines. Compressed records may be put behind each other: together they decompress to all their lines.
type Codec struct {
	encoder *zstd.Encoder
	decoder *zstd.Decoder
}

// NewCodec returns a codec, which may be used by several goroutines.
func NewCodec() (*Codec, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(256<<10), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("telemetry: zstd encoder: %w", err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxDecoded), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("telemetry: zstd decoder: %w", err)
	}
	return &Codec{encoder: enc, decoder: dec}, nil
}

// Encode returns compressed lines, and their size when they are decompressed.
func (c *Codec) Encode(lines []Line) (data []byte, size int, err error) {
	var b bytes.Buffer
	out := json.NewEncoder(&b)
	out.SetEscapeHTML(false)
	for i := range lines {
		if err := out.Encode(&lines[i]); err != nil {
			return nil, 0, fmt.Errorf("telemetry: encode: %w", err)
		}
	}
	return c.encoder.EncodeAll(b.Bytes(), nil), b.Len(), nil
}

// Decode returns the lines of compressed records. Its errors wrap wire.ErrPermanent.
func (c *Codec) Decode(data []byte) ([]Line, error) {
	plain, err := c.decoder.DecodeAll(data, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: samples: %w", wire.ErrPermanent, err)
	}
	var lines []Line
	in := json.NewDecoder(bytes.NewReader(plain))
	for {
		var l Line
		err := in.Decode(&l)
		switch {
		case errors.Is(err, io.EOF):
			return lines, nil
		case err != nil:
			return nil, fmt.Errorf("%w: sample %d: %w", wire.ErrPermanent, len(lines)+1, err)
		case len(lines) == MaxLines:
			return nil, fmt.Errorf("%w: more than %d samples", wire.ErrPermanent, MaxLines)
		}
		lines = append(lines, l)
	}
}

// CheckLines refuses, wrapped in wire.ErrPermanent, lines that no Store made: what a node sends is not trusted.
func CheckLines(lines []Line, check func(*Line) error) error {
	last := uint64(0)
	for i := range lines {
		l := &lines[i]
		if l.Number <= last || l.Previous >= l.Number {
			return fmt.Errorf("%w: sample %d has the number %d after %d, and names %d as the one before it", wire.ErrPermanent, i+1, l.Number, last, l.Previous)
		}
		last = l.Number
		if err := check(l); err != nil {
			return fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	return nil
}

// message is the inverse of newMessageLine.
func (l *Line) message() Message {
	return Message{
		Topic: l.Topic, Payload: l.Payload, Broker: l.Broker, User: l.User, GatewayTime: time.UnixMilli(l.GatewayTime), ClockSynced: l.ClockSynced,
	}
}

// lineOverhead is what a line has beside its texts.
const lineOverhead = 120

// Size is an upper bound of the line's size, encoded.
func (l *Line) Size() int {
	text := len(l.Namespace) + len(l.Device) + jsonLength(l.Property) + jsonLength(l.Value) + jsonLength(l.Topic) + jsonLength(l.User)
	return lineOverhead + text + base64.StdEncoding.EncodedLen(len(l.Payload))
}

// jsonLength is the most that a text takes in JSON, without its quotes.
func jsonLength(text string) int {
	const escaped = 6 // \u0000
	n := 0
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			n += escaped
		} else {
			n++
		}
	}
	return n
}

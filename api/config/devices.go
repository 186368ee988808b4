package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"time"
)

// Devices are the settings of a gateway's devices.
type Devices struct {
	MQTT      MQTT      `json:"mqtt,omitzero"`
	DMI       DMI       `json:"dmi,omitzero"`
	Telemetry Telemetry `json:"telemetry,omitzero"`
	Messages  Messages  `json:"messages,omitzero"`
}

// The modes of MQTT.
const (
	MQTTOff      = "off"
	MQTTInternal = "internal"
	MQTTExternal = "external"
	MQTTBoth     = "both"
)

// MQTT is the broker for the gateway's devices and their apps.
type MQTT struct {
	// Mode is off, the default; internal: edgecore runs a broker; external: it is a client of another one; or both.
	Mode string `json:"mode,omitempty"`
	// Listen is an address and port; the default is 127.0.0.1:1883.
	Listen string `json:"listen,omitempty"`
	// AllowLoopbackAnonymous lets apps in that name no user, as KubeEdge's broker does; only on a loopback address.
	AllowLoopbackAnonymous bool `json:"allowLoopbackAnonymous,omitempty"`
	// UsersFile lists who may connect: a YAML list of name, passwordHash (bcrypt) and devices (namespace/name). It is read at the start.
	UsersFile string `json:"usersFile,omitempty"`
	// TLS encrypts the connections to the broker.
	TLS MQTTTLS `json:"tls,omitzero"`
	// AllowPlaintext lets the broker listen beyond loopback without TLS: passwords and values can be read on the way. Without both it does not start.
	AllowPlaintext bool `json:"allowPlaintext,omitempty"`
	// MaxClients is the number of clients at a time; the default is 256.
	MaxClients int `json:"maxClients,omitempty"`
	// MaxStoreMiB bounds the disk of messages that wait; the default is 128.
	MaxStoreMiB int `json:"maxStoreMiB,omitempty"`
	// SyncAlways syncs sessions, subscriptions and messages to apps at once, instead of once a second. It costs 90 % of the throughput of messages to apps.
	SyncAlways bool `json:"syncAlways,omitempty"`
	// External is the other broker.
	External ExternalMQTT `json:"external,omitzero"`
}

// MQTTTLS names the certificate of edgecore's own MQTT broker: absolute paths, read again for each connection. Without CertFile there is no TLS.
type MQTTTLS struct {
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// ClientCAFile makes each client show a certificate of this CA, beside its user's password.
	ClientCAFile string `json:"clientCAFile,omitempty"`
}

// ExternalMQTT is an MQTT broker that is not edgecore's own. Files are absolute paths, read at each connect.
type ExternalMQTT struct {
	// URL is tcp://host:port or ssl://host:port.
	URL          string `json:"url,omitempty"`
	UserFile     string `json:"userFile,omitempty"`
	PasswordFile string `json:"passwordFile,omitempty"`
	// CAFile verifies the broker; the default is the system's CAs.
	CAFile   string `json:"caFile,omitempty"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// KeepAlive is how often the broker is asked whether it is there; the default is 30s.
	KeepAlive Duration `json:"keepAlive,omitzero"`
}

// Messages is the way of what apps publish on custom MQTT topics to the hub.
type Messages struct {
	// MaxMiB and MaxAge bound what waits on the gateway's disk, the oldest goes first; the defaults are 64 and 168h.
	MaxMiB int      `json:"maxMiB,omitempty"`
	MaxAge Duration `json:"maxAge,omitzero"`
	// MaxPayloadKiB bounds a message; larger ones are refused. The default is 64, the most 256.
	MaxPayloadKiB int `json:"maxPayloadKiB,omitempty"`
	// BytesPerSecond bounds what messages take of the link; 0, the default, is no limit of their own.
	BytesPerSecond int `json:"bytesPerSecond,omitempty"`
}

// DMI is the interface for KubeEdge's mappers. It needs a mode of MQTT other than off, which keeps what devices report.
type DMI struct {
	// Enabled opens the socket dmi.sock in Dir.
	Enabled bool `json:"enabled,omitempty"`
	// Dir is the folder of the sockets, which pods of mappers mount; the default is /etc/kubeedge.
	Dir string `json:"dir,omitempty"`
	// AllowHost lets programs of root that are in no pod be mappers.
	AllowHost bool `json:"allowHost,omitempty"`
	// Mappers lists who may serve which protocol; empty: each pod of this gateway that mounts Dir.
	Mappers []Mapper `json:"mappers,omitempty"`
}

// Mapper allows pods to serve the devices of a protocol.
type Mapper struct {
	Protocol  string `json:"protocol"`
	Namespace string `json:"namespace"`
	// ServiceAccount is that of the pods; "" allows each.
	ServiceAccount string `json:"serviceAccount,omitempty"`
}

// defaultDMIDir is where KubeEdge's mappers look.
const defaultDMIDir = "/etc/kubeedge"

// Telemetry is the way of the samples of devices to the hub.
type Telemetry struct {
	// MaxMiB and MaxAge bound the samples that wait on the gateway's disk, the oldest go first; the defaults are 64 and 168h.
	MaxMiB int      `json:"maxMiB,omitempty"`
	MaxAge Duration `json:"maxAge,omitzero"`
	// BytesPerSecond bounds what samples take of the link; 0, the default, is no limit of their own.
	BytesPerSecond int `json:"bytesPerSecond,omitempty"`
}

// MQTTAddress is where apps of KubeEdge look for a broker, the default of MQTT.Listen.
const MQTTAddress = "127.0.0.1:1883"

const (
	defaultTelemetryMaxMiB = 64
	defaultTelemetryMaxAge = 7 * 24 * time.Hour
	// minTelemetryRate lets the largest request pass within the time that it may take.
	minTelemetryRate = 1 << 10
	// defaultMaxPayloadKiB passes a link of 50 kbit/s within the time that a request may take; maxPayloadKiB is the brokers' own limit.
	defaultMaxPayloadKiB = 64
	maxPayloadKiB        = 256
	defaultKeepAlive     = 30 * time.Second
)

// Enabled reports whether anything is run for devices.
func (d Devices) Enabled() bool { return d.MQTT.OwnBroker() || d.MQTT.Mode == MQTTExternal }

// OwnBroker reports whether edgecore runs a broker.
func (m MQTT) OwnBroker() bool { return m.Mode == MQTTInternal || m.Mode == MQTTBoth }

// CheckListen says why edgecore's own broker must not listen, and what to set. It is no fault of the configuration: versions before took it, and a
// gateway that did not start for it would lose its pods and its link.
func (m MQTT) CheckListen() error {
	at, err := netip.ParseAddrPort(m.Listen)
	host, _, _ := net.SplitHostPort(m.Listen) // validated
	if !m.OwnBroker() || m.TLS.CertFile != "" || m.AllowPlaintext || host == "localhost" || err == nil && at.Addr().IsLoopback() {
		return nil
	}
	return fmt.Errorf("devices.mqtt.listen: %s is not a loopback address, and passwords could be read on the way: set tls, or allowPlaintext in a network of its own", m.Listen)
}

// ExternalBroker reports whether edgecore is a client of another broker.
func (m MQTT) ExternalBroker() bool { return m.Mode == MQTTExternal || m.Mode == MQTTBoth }

func (d *Devices) setDefaults() {
	if d.MQTT.Mode == "" {
		d.MQTT.Mode = MQTTOff
	}
	if d.MQTT.Listen == "" {
		d.MQTT.Listen = MQTTAddress
	}
	if d.DMI.Dir == "" {
		d.DMI.Dir = defaultDMIDir
	}
	if d.Telemetry.MaxMiB == 0 {
		d.Telemetry.MaxMiB = defaultTelemetryMaxMiB
	}
	if d.Telemetry.MaxAge == 0 {
		d.Telemetry.MaxAge = Duration(defaultTelemetryMaxAge)
	}
	if d.MQTT.External.KeepAlive == 0 {
		d.MQTT.External.KeepAlive = Duration(defaultKeepAlive)
	}
	if d.Messages.MaxMiB == 0 {
		d.Messages.MaxMiB = defaultTelemetryMaxMiB
	}
	if d.Messages.MaxAge == 0 {
		d.Messages.MaxAge = Duration(defaultTelemetryMaxAge)
	}
	if d.Messages.MaxPayloadKiB == 0 {
		d.Messages.MaxPayloadKiB = defaultMaxPayloadKiB
	}
}

func (d Devices) validate() error {
	return errors.Join(d.MQTT.validate(d.DMI.Enabled), d.DMI.validate(d.MQTT), d.Telemetry.validate("devices.telemetry"), d.Messages.validate())
}

func (d DMI) validate(mqtt MQTT) error {
	if !d.Enabled {
		return nil
	}
	var faults []error
	if mqtt.Mode == MQTTOff || mqtt.Mode == "" {
		faults = append(faults, errors.New("devices.dmi: needs a devices.mqtt.mode other than off, such as internal, which keeps what devices report; without users and allowLoopbackAnonymous it lets no app in"))
	}
	if !filepath.IsAbs(d.Dir) {
		faults = append(faults, fmt.Errorf("devices.dmi.dir: %q is not an absolute path", d.Dir))
	}
	for i, m := range d.Mappers {
		if m.Protocol == "" || m.Namespace == "" {
			faults = append(faults, fmt.Errorf("devices.dmi.mappers[%d]: protocol and namespace are required", i))
		}
	}
	return errors.Join(faults...)
}

// validate checks the settings; forMappers says that nobody need be able to connect.
func (m MQTT) validate(forMappers bool) error {
	if m.Mode == "" || m.Mode == MQTTOff {
		return nil
	}
	var faults []error
	if !m.OwnBroker() && !m.ExternalBroker() {
		faults = append(faults, fmt.Errorf("devices.mqtt.mode: %q is none of %s, %s, %s and %s", m.Mode, MQTTOff, MQTTInternal, MQTTExternal, MQTTBoth))
	}
	if m.ExternalBroker() {
		faults = append(faults, m.External.validate(m))
	}
	if !m.OwnBroker() {
		if m.TLS != (MQTTTLS{}) {
			faults = append(faults, fmt.Errorf("devices.mqtt.tls: edgecore runs no broker in mode %s; external.caFile verifies the other one", m.Mode))
		}
		return errors.Join(faults...)
	}
	faults = append(faults, validateHostPort("devices.mqtt.listen", m.Listen), m.TLS.validate())
	if at, err := netip.ParseAddrPort(m.Listen); m.AllowLoopbackAnonymous && (err != nil || !at.Addr().IsLoopback()) {
		faults = append(faults, fmt.Errorf("devices.mqtt.allowLoopbackAnonymous: %s is not a loopback address; name users in usersFile", m.Listen))
	}
	if !forMappers && !m.AllowLoopbackAnonymous && m.UsersFile == "" {
		faults = append(faults, errors.New("devices.mqtt: nobody could connect; set usersFile, or allowLoopbackAnonymous for apps that name no user"))
	}
	if m.UsersFile != "" && !filepath.IsAbs(m.UsersFile) {
		faults = append(faults, fmt.Errorf("devices.mqtt.usersFile: %q is not an absolute path", m.UsersFile))
	}
	if m.MaxClients < 0 {
		faults = append(faults, fmt.Errorf("devices.mqtt.maxClients: %d is below 0", m.MaxClients))
	}
	if m.MaxStoreMiB != 0 && m.MaxStoreMiB < 16 {
		faults = append(faults, fmt.Errorf("devices.mqtt.maxStoreMiB: %d is below 16", m.MaxStoreMiB))
	}
	return errors.Join(faults...)
}

func (t Telemetry) validate(name string) error {
	var faults []error
	if t.MaxMiB < 0 {
		faults = append(faults, fmt.Errorf("%s.maxMiB: %d is below 0", name, t.MaxMiB))
	}
	if age := time.Duration(t.MaxAge); age != 0 && age < time.Minute {
		faults = append(faults, fmt.Errorf("%s.maxAge: %s is less than a minute", name, age))
	}
	if t.BytesPerSecond != 0 && t.BytesPerSecond < minTelemetryRate {
		faults = append(faults, fmt.Errorf("%s.bytesPerSecond: %d is below %d", name, t.BytesPerSecond, minTelemetryRate))
	}
	return errors.Join(faults...)
}

func (m Messages) validate() error {
	err := Telemetry{MaxMiB: m.MaxMiB, MaxAge: m.MaxAge, BytesPerSecond: m.BytesPerSecond}.validate("devices.messages")
	if m.MaxPayloadKiB < 0 || m.MaxPayloadKiB > maxPayloadKiB {
		return errors.Join(err, fmt.Errorf("devices.messages.maxPayloadKiB: %d is not between 1 and %d", m.MaxPayloadKiB, maxPayloadKiB))
	}
	return err
}

// validate checks what other settings tell; the client of the broker checks the rest.
func (e ExternalMQTT) validate(m MQTT) error {
	u, err := url.Parse(e.URL)
	switch {
	case e.URL == "":
		return fmt.Errorf("devices.mqtt.external.url: needed for devices.mqtt.mode %s, such as tcp://127.0.0.1:1883", m.Mode)
	case err != nil:
		return fmt.Errorf("devices.mqtt.external.url: %w", err)
	case m.OwnBroker() && isSameListener(u.Host, m.Listen):
		return fmt.Errorf("devices.mqtt.external.url: %s is edgecore's own broker (devices.mqtt.listen %s); each message would be taken twice", e.URL, m.Listen)
	}
	return nil
}

// isSameListener reports whether a client of an address reaches a listener of this gateway.
func isSameListener(address, listen string) bool {
	host, port, err := net.SplitHostPort(address)
	own, ownPort, ownErr := net.SplitHostPort(listen)
	if err != nil || ownErr != nil || port != ownPort {
		return false
	}
	local := func(h string) bool {
		ip := net.ParseIP(h)
		return h == "" || h == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
	}
	return host == own || local(host) && local(own)
}

func (t MQTTTLS) validate() error {
	if t == (MQTTTLS{}) {
		return nil
	}
	var faults []error
	for _, f := range []struct {
		field, file string
		needed      bool
	}{{"certFile", t.CertFile, true}, {"keyFile", t.KeyFile, true}, {"clientCAFile", t.ClientCAFile, false}} {
		switch {
		case f.file == "" && f.needed:
			faults = append(faults, fmt.Errorf("devices.mqtt.tls.%s: needed; TLS takes both certFile and keyFile", f.field))
		case f.file != "" && !filepath.IsAbs(f.file):
			faults = append(faults, fmt.Errorf("devices.mqtt.tls.%s: %q is not an absolute path", f.field, f.file))
		}
	}
	return errors.Join(faults...)
}

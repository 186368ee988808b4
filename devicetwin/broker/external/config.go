package external

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
)

// Config says how to reach a broker. Files are read at each connect, so that they may be renewed.
type Config struct {
	// URL is tcp://host:port or ssl://host:port.
	URL string
	// UserFile and PasswordFile hold the user's name and password; "" is none.
	UserFile, PasswordFile string
	// CAFile verifies the broker; "" is the system's CAs. CertFile and KeyFile are the client's certificate; "" is none.
	CAFile, CertFile, KeyFile string
	// KeepAlive is how often the broker is asked whether it is there; 0 is DefaultKeepAlive.
	KeepAlive time.Duration
}

const (
	// DefaultKeepAlive is MQTT's usual one: a dead broker is noticed within twice of it.
	DefaultKeepAlive = 30 * time.Second
	connectTimeout   = 10 * time.Second
	// maxFile bounds each file.
	maxFile = 1 << 20
)

// The schemes of a URL, and whether they use TLS.
func usesTLS(scheme string) (tls, ok bool) {
	switch scheme {
	case "tcp", "mqtt":
		return false, true
	case "ssl", "tls", "mqtts":
		return true, true
	default:
		return false, false
	}
}

// Validate returns all faults.
func (c Config) Validate() error {
	var faults []error
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		faults = append(faults, fmt.Errorf("url: %w", err))
	case u.User != nil:
		faults = append(faults, errors.New("url: has a user; name userFile and passwordFile"))
	case u.Port() == "" || u.Hostname() == "":
		faults = append(faults, fmt.Errorf("url: %q is not scheme://host:port", c.URL))
	default:
		secure, ok := usesTLS(u.Scheme)
		if !ok {
			faults = append(faults, fmt.Errorf("url: scheme %q is neither tcp nor ssl", u.Scheme))
		}
		if !secure && (c.CAFile != "" || c.CertFile != "") {
			faults = append(faults, errors.New("url: caFile and certFile need the scheme ssl"))
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		faults = append(faults, errors.New("certFile and keyFile: one is missing"))
	}
	if c.PasswordFile != "" && c.UserFile == "" {
		faults = append(faults, errors.New("passwordFile: userFile is missing"))
	}
	for name, file := range map[string]string{
		"userFile": c.UserFile, "passwordFile": c.PasswordFile, "caFile": c.CAFile, "certFile": c.CertFile, "keyFile": c.KeyFile,
	} {
		if file != "" && !filepath.IsAbs(file) {
			faults = append(faults, fmt.Errorf("%s: %q is not an absolute path", name, file))
		}
	}
	if c.KeepAlive != 0 && c.KeepAlive < time.Second {
		faults = append(faults, fmt.Errorf("keepAlive: %s is less than a second", c.KeepAlive))
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}

// options reads the files and returns paho's options.
func (c Config) options(clientID string) (*paho.ClientOptions, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	keepAlive := c.KeepAlive
	if keepAlive == 0 {
		keepAlive = DefaultKeepAlive
	}
	secure, _ := usesTLS(u.Scheme)
	scheme := "tcp"
	if secure {
		scheme = "ssl"
	}
	o := paho.NewClientOptions().AddBroker(scheme + "://" + u.Host).SetClientID(clientID).SetCleanSession(false).SetProtocolVersion(4).
		SetAutoReconnect(false).SetConnectTimeout(connectTimeout).SetKeepAlive(keepAlive).SetPingTimeout(keepAlive).SetWriteTimeout(connectTimeout).
		SetOrderMatters(true).SetAutoAckDisabled(true)
	user, err := readLine(c.UserFile)
	if err != nil {
		return nil, fmt.Errorf("userFile: %w", err)
	}
	password, err := readLine(c.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("passwordFile: %w", err)
	}
	o.SetUsername(user).SetPassword(password)
	if !secure {
		return o, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: u.Hostname()}
	if c.CAFile != "" {
		pem, err := readFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("caFile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("caFile: %s has no certificate", c.CAFile)
		}
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certFile: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return o.SetTLSConfig(config), nil
}

func readLine(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	data, err := readFile(file)
	return strings.TrimRight(string(data), "\r\n"), err
}

func readFile(file string) ([]byte, error) {
	about, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if about.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes, at most %d", file, about.Size(), maxFile)
	}
	return os.ReadFile(file)
}

package devices

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/internal/certs"
)

// listenerInterval is how often it is tried whether a broker that may not listen now may: a certificate that is missing may come later.
const listenerInterval = 5 * time.Second

// errMayListen starts the part for devices anew.
var errMayListen = errors.New("the MQTT broker may listen now")

// listenerTLS returns the TLS of edgecore's own broker, nil without. The error says why the broker must not listen now.
func listenerTLS(m config.MQTT) (*tls.Config, error) {
	if err := m.CheckListen(); err != nil || !m.OwnBroker() || m.TLS.CertFile == "" {
		return nil, err
	}
	c, err := certs.Listener{
		CertFile: m.TLS.CertFile, KeyFile: m.TLS.KeyFile, ClientCAFile: m.TLS.ClientCAFile, Auth: tls.RequireAndVerifyClientCert, AllowTLS12: true,
	}.Config()
	if err != nil {
		return nil, fmt.Errorf("devices.mqtt.tls: %w", err)
	}
	return c, nil
}

// awaitListener waits until the broker may listen, and then returns errMayListen.
func awaitListener(ctx context.Context, m config.MQTT) error {
	tick := time.NewTicker(listenerInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if _, err := listenerTLS(m); err == nil {
				return errMayListen
			}
		case <-ctx.Done():
			return nil
		}
	}
}

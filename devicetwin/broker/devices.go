package broker

import (
	"context"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin"
)

// change is a change of the Devices.
type change struct {
	apply func(ctx context.Context) error
	done  chan error // has room for the one answer
}

// SetDevice takes a Device of the gateway that came or changed, stores its desired values and tells the apps: membership, and a delta if the device
// reports other values. It waits until the broker runs. After an error the device is known, and its record is stored with the next change.
func (s *Server) SetDevice(ctx context.Context, spec devicetwin.Spec) error {
	return s.change(ctx, func(ctx context.Context) error { return s.bridge.setDevice(ctx, spec) })
}

// RemoveDevice forgets a device and its record, and tells the apps.
func (s *Server) RemoveDevice(ctx context.Context, id types.NamespacedName) error {
	return s.change(ctx, func(ctx context.Context) error { return s.bridge.removeDevice(ctx, id) })
}

// DevicesLoaded says that SetDevice was called for all Devices that the gateway knows at its start. Before, no client may connect and no message is
// handled: devices would be unknown that exist. The records of Devices that were removed while the gateway was off are forgotten.
func (s *Server) DevicesLoaded(ctx context.Context) error {
	return s.change(ctx, func(ctx context.Context) error {
		if err := s.bridge.removeOrphans(ctx); err != nil {
			return err
		}
		s.openOnce.Do(func() {
			s.open.Store(true)
			close(s.ready)
			s.log.Info("MQTT broker ready", zap.String("address", s.Addr()))
		})
		return nil
	})
}

func (s *Server) change(ctx context.Context, apply func(context.Context) error) error {
	c := change{apply: apply, done: make(chan error, 1)}
	select {
	case s.changes <- c:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

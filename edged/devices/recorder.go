package devices

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/streams/telemetry"
)

// recorder gives the samples of MQTT apps to the telemetry store. It implements broker.Recorder.
type recorder struct {
	store *telemetry.Store
	space diskSpace
}

func (r recorder) CheckWritable() error { return r.space.check() }

func (r recorder) Record(ctx context.Context, samples []broker.Sample) error {
	return r.append(ctx, telemetry.Exact, samples)
}

func (r recorder) Enqueue(ctx context.Context, samples []broker.Sample) error {
	return r.append(ctx, telemetry.Flow, samples)
}

func (r recorder) append(ctx context.Context, class telemetry.Class, samples []broker.Sample) error {
	if err := r.space.check(); err != nil {
		return err
	}
	synced := isClockSynced()
	all := make([]telemetry.Sample, len(samples))
	for i, s := range samples {
		all[i] = telemetry.Sample{
			Namespace: s.Device.Namespace, Device: s.Device.Name, Property: s.Property, Value: s.Value,
			DeviceTime: s.Time, GatewayTime: s.Received, ClockSynced: synced,
		}
	}
	return r.store.Append(ctx, class, all)
}

// errLowSpace refuses what devices and apps send.
var errLowSpace = errors.New("the gateway's disk has room for control state only")

// diskSpace reports that the disk is almost full; nil: never.
type diskSpace func() bool

func (low diskSpace) check() error {
	if low != nil && low() {
		return errLowSpace
	}
	return nil
}

// isClockSynced reports whether the kernel's clock is synchronized, as chrony, ntpd and systemd-timesyncd tell it.
func isClockSynced() bool {
	state, err := unix.ClockAdjtime(unix.CLOCK_REALTIME, &unix.Timex{})
	return err == nil && state != unix.TIME_ERROR
}

// now is the gateway's clock.
func now() time.Time { return time.Now() }

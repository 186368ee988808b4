package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/devices"
	"github.com/frond-edge/frond/internal/devcluster/devices/sensor"
)

// demoSensor is the virtual sensor of the demo. Its Device goes with the namespace.
func demoSensor() devices.Device {
	return devices.Device{Namespace: "demo", Name: "thermometer", Edge: cutEdge, Interval: 200 * time.Millisecond}
}

// sensorStory is the part of the demo that a sensor plays.
type sensorStory struct {
	*demoRun

	position     uint64        // of the hub's stream before the sensor started
	cut, resumed sensor.Status // when the link was cut, and before it was healed
}

// clear removes the sensor of an earlier demo.
func (s *sensorStory) clear(ctx context.Context) error {
	if _, err := s.dev.DeleteDevice(ctx, demoSensor().Namespace, demoSensor().Name); !errors.Is(err, devices.ErrNoDevice) {
		return err
	}
	return nil
}

func (s *sensorStory) start(ctx context.Context) (err error) {
	v := demoSensor()
	s.printStep("A sensor reports to the MQTT broker of %s, five times a second, as a Device of KubeEdge", v.Edge)
	if s.position, err = s.dev.HubSequence(ctx); err != nil {
		return err
	}
	if err := s.dev.StartDevice(ctx, v); err != nil {
		return err
	}
	if err := retryUntil(ctx, podLimit, s.wantAnswered(10)); err != nil {
		return err
	}
	err = retryUntil(ctx, arriveLimit, func(ctx context.Context) error {
		numbers, err := s.dev.HubSamples(ctx, v, s.position)
		if err == nil && len(numbers) < 10 {
			err = fmt.Errorf("the hub has %d samples", len(numbers))
		}
		return err
	})
	if err != nil {
		return err
	}
	s.printFact("its samples are in the hub's stream TELEMETRY-0")
	return nil
}

// status returns what the sensor says of itself.
func (s *sensorStory) status() (sensor.Status, error) {
	list, err := s.dev.ListDevices()
	if err != nil {
		return sensor.Status{}, err
	}
	for _, d := range list {
		if d.Namespace == demoSensor().Namespace && d.Name == demoSensor().Name {
			if !d.Running {
				return d.Status, fmt.Errorf("the sensor has ended: %s", d.Log)
			}
			return d.Status, nil
		}
	}
	return sensor.Status{}, devices.ErrNoDevice
}

// wantAnswered fails unless the gateway has answered so many samples.
func (s *sensorStory) wantAnswered(n int64) func(context.Context) error {
	return func(context.Context) error {
		status, err := s.status()
		if err == nil && status.Answered < n {
			err = fmt.Errorf("%d samples are answered, want %d; %s", status.Answered, n, status.Problem)
		}
		return err
	}
}

// markCut notes how far the sensor was when the link was cut.
func (s *sensorStory) markCut(context.Context) (err error) {
	s.cut, err = s.status()
	return err
}

// checkWhileCut: the gateway goes on to take samples, and the hub does not have them.
func (s *sensorStory) checkWhileCut(ctx context.Context) (err error) {
	if err := retryUntil(ctx, arriveLimit, s.wantAnswered(s.cut.Answered+10)); err != nil {
		return err
	}
	if s.resumed, err = s.status(); err != nil {
		return err
	}
	numbers, err := s.dev.HubSamples(ctx, demoSensor(), s.position)
	if err != nil {
		return err
	}
	if int64(len(numbers)) >= s.resumed.Answered {
		return fmt.Errorf("the hub has %d samples of %d, without a link", len(numbers), s.resumed.Answered)
	}
	s.printFact("the sensor has sent %d samples since the cut; they wait on the gateway's disk", s.resumed.Answered-s.cut.Answered)
	return nil
}

// checkSamples ends the sensor and compares the hub's stream with the sensor's own numbers.
func (s *sensorStory) checkSamples(ctx context.Context) error {
	s.printStep("Each sample of the sensor is in the hub, also those of the time without a link")
	last, err := s.dev.StopDevice(ctx, demoSensor().Namespace, demoSensor().Name)
	if err != nil {
		return err
	}
	count := 0
	err = retryUntil(ctx, 2*arriveLimit, func(ctx context.Context) error {
		numbers, err := s.dev.HubSamples(ctx, demoSensor(), s.position)
		if err != nil {
			return err
		}
		count = len(numbers)
		return last.Check(numbers)
	})
	if err != nil {
		return err
	}
	how := "once and in order"
	if last.Repeated > 0 {
		how = fmt.Sprintf("in order and once, but for %d that the sensor sent again", last.Repeated)
	}
	s.printFact("%d samples answered by %s, %d in the stream TELEMETRY-0, %s; %d of them from the time without a link",
		last.Answered, cutEdge, count, how, s.resumed.Answered-s.cut.Answered)
	return s.clear(ctx)
}

// Package sensor is the virtual sensor of a development cluster: an MQTT app that reports the numbers 1, 2, 3 … as its samples.
//
// It uses KubeEdge's topics and knows nothing of Frond. A number counts as answered once twin/update/result says so; until then it is sent again,
// also over connections. The numbers of a sensor therefore prove what became of them: each up to Status.Answered must be in the hub, in order, and
// no more than Status.Repeated of them twice. A desired value that a delta names is reported as applied.
package sensor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"go.uber.org/zap"
)

// The properties of the device: its samples, and what it can be told.
const (
	Sample   = "sample"
	Setpoint = "setpoint"
)

// Config is what a sensor is started with.
type Config struct {
	// Namespace and Name are those of its Device.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Broker is the address and port of the gateway's MQTT broker, NetworkNamespace the network namespace to dial it from; "" is the present one.
	Broker           string `json:"broker"`
	NetworkNamespace string `json:"networkNamespace,omitempty"`
	// Interval is the time between two samples.
	Interval time.Duration `json:"interval"`
	// StatusFile is replaced with the Status after each change. A sensor that is started again goes on from it.
	StatusFile string `json:"statusFile"`
}

// Status is what a sensor knows of itself.
type Status struct {
	// Sent counts the messages with a sample.
	Sent int64 `json:"sent"`
	// Answered is the last number whose value the gateway has answered without an error; all before it were, too.
	Answered int64 `json:"answered"`
	// Repeated counts the messages with a number that had been sent before, Refused the answers with an error.
	Repeated int64 `json:"repeated"`
	Refused  int64 `json:"refused"`
	// Setpoint is the last desired value that the gateway has taken as reported.
	Setpoint string `json:"setpoint,omitempty"`
	// Connected tells whether the sensor is connected to the broker; Problem is the last error since it was.
	Connected bool   `json:"connected"`
	Problem   string `json:"problem,omitempty"`
}

const (
	// answerTimeout is longer than the gateway takes to store a value while it is busy; after it the connection is given up.
	answerTimeout = 5 * time.Second
	// redialDelay is short: the broker is on the same machine.
	redialDelay = 300 * time.Millisecond
)

// Sensor is one virtual sensor.
type Sensor struct {
	cfg    Config
	log    *zap.Logger
	status Status // used by Start alone
	sent   int64  // the highest number that was sent
}

// New returns a sensor that does nothing yet.
func New(cfg Config, log *zap.Logger) *Sensor { return &Sensor{cfg: cfg, log: log} }

// Start reports until ctx ends. It fails only if the status file cannot be read or written.
func (s *Sensor) Start(ctx context.Context) error {
	var err error
	if s.status, err = ReadStatus(s.cfg.StatusFile); err != nil {
		return err
	}
	s.sent = s.status.Answered
	for ctx.Err() == nil {
		err := s.runSession(ctx)
		if errors.Is(err, errStatusFile) {
			return err
		}
		s.status.Connected = false
		if err != nil && ctx.Err() == nil {
			s.status.Problem = err.Error()
			s.log.Info("connection ended", zap.Error(err))
		}
		if err := s.writeStatus(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(redialDelay):
		}
	}
	return nil
}

// runSession reports over one connection, until it fails or ctx ends.
func (s *Sensor) runSession(ctx context.Context) error {
	c, err := dial(ctx, s.cfg)
	if err != nil {
		return err
	}
	defer func() {
		if ctx.Err() != nil {
			_ = c.publishState(context.WithoutCancel(ctx), "offline") // otherwise the broker's will says so
		}
		c.close()
	}()
	s.status.Connected, s.status.Problem = true, ""
	s.log.Info("connected", zap.String("broker", s.cfg.Broker))
	if err := c.publishState(ctx, "online"); err != nil {
		return err
	}
	ticker := time.NewTicker(s.cfg.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-c.lost:
			return err
		case value := <-c.desired:
			err = s.reportSetpoint(ctx, c, value)
		case <-ticker.C:
			err = s.reportSample(ctx, c)
		}
		if err != nil {
			return err
		}
		if err := s.writeStatus(); err != nil {
			return err
		}
	}
}

// reportSample sends the number after the last answered one. An answer with an error is no error of the connection: the number comes again.
func (s *Sensor) reportSample(ctx context.Context, c *connection) error {
	number := s.status.Answered + 1
	s.status.Sent++
	if number <= s.sent {
		s.status.Repeated++
	}
	s.sent = max(s.sent, number)
	answer, err := c.report(ctx, Sample, strconv.FormatInt(number, 10))
	switch {
	case err != nil:
		return err
	case answer != nil:
		s.status.Refused++
		s.log.Info("refused", zap.Int64("number", number), zap.Error(answer))
	default:
		s.status.Answered = number
	}
	return nil
}

// reportSetpoint reports a desired value as applied. The gateway repeats its delta until it has taken it.
func (s *Sensor) reportSetpoint(ctx context.Context, c *connection, value string) error {
	answer, err := c.report(ctx, Setpoint, value)
	switch {
	case err != nil:
		return err
	case answer != nil:
		s.status.Refused++
		s.log.Info("setpoint refused", zap.String("value", value), zap.Error(answer))
	case s.status.Setpoint != value:
		s.status.Setpoint = value
		s.log.Info("setpoint applied", zap.String("value", value))
	}
	return nil
}

// errStatusFile marks an error of the status file, for which no other connection helps.
var errStatusFile = errors.New("status file")

// ReadStatus reads a status file. A sensor that has not written one yet has the zero Status.
func ReadStatus(path string) (Status, error) {
	var s Status
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return s, fmt.Errorf("%w: %w", errStatusFile, err)
	}
	return s, nil
}

// writeStatus replaces the status file. It is not synced: the sensor of a machine that lost power is of no use.
func (s *Sensor) writeStatus() error {
	data, err := json.Marshal(s.status)
	if err == nil {
		err = os.WriteFile(s.cfg.StatusFile+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(s.cfg.StatusFile+".new", s.cfg.StatusFile)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errStatusFile, err)
	}
	return nil
}

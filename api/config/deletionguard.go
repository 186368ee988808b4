package config

import (
	"errors"
	"fmt"
	"time"
)

// Duration is a duration in Go's notation: 90s, 1h30m.
type Duration time.Duration

// UnmarshalText parses a duration.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// MarshalText formats a duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// DeletionGuard configures when cloudcore holds deletions of pods on a gateway.
type DeletionGuard struct {
	// Share is the fraction of a node's pods whose simultaneous removal without termination is held; the default is 0.5, and 0 switches
	// this check off.
	Share *float64 `json:"share,omitempty"`
	// Minimum is the least number of pods that counts as a mass delete; 0 means 5.
	Minimum int `json:"minimum,omitempty"`
	// After releases held deletions after this time; 0 means never.
	After Duration `json:"after,omitzero"`
}

const (
	defaultGuardShare   = 0.5
	defaultGuardMinimum = 5
)

func (g *DeletionGuard) setDefaults() {
	if g.Share == nil {
		share := defaultGuardShare
		g.Share = &share
	}
	if g.Minimum == 0 {
		g.Minimum = defaultGuardMinimum
	}
}

func (g DeletionGuard) validate() error {
	var faults []error
	if g.Share != nil && (*g.Share < 0 || *g.Share > 1) {
		faults = append(faults, fmt.Errorf("deletionGuard.share: %v is not within 0 and 1", *g.Share))
	}
	if g.Minimum < 0 {
		faults = append(faults, errors.New("deletionGuard.minimum: negative"))
	}
	if g.After < 0 {
		faults = append(faults, errors.New("deletionGuard.after: negative"))
	}
	return errors.Join(faults...)
}

// Restore configures the handling of pods that the Kubernetes API no longer knows since it went back in time.
type Restore struct {
	// KeepFor is how long they are kept without a confirmation; the default is 1h, and 0s keeps none.
	KeepFor *Duration `json:"keepFor,omitempty"`
}

const defaultKeepFor = Duration(time.Hour)

func (r *Restore) setDefaults() {
	if r.KeepFor == nil {
		keep := defaultKeepFor
		r.KeepFor = &keep
	}
}

func (r Restore) validate() error {
	if r.KeepFor != nil && *r.KeepFor < 0 {
		return errors.New("restore.keepFor: negative")
	}
	return nil
}

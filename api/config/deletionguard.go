package config

import (
	"errors"
	"fmt"
	"time"
)

// Duration is written as in Go: 90s, 1h30m.
type Duration time.Duration

// UnmarshalText reads a duration.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// MarshalText writes a duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// DeletionGuard says when cloudcore holds back what it would take from a gateway.
type DeletionGuard struct {
	// Share of a node's pods that may go at once without having been terminated; the default is 0.5, and 0 switches it off.
	Share *float64 `json:"share,omitempty"`
	// Minimum is the least number of pods that counts as a mass delete; 0 means 5.
	Minimum int `json:"minimum,omitempty"`
	// After lets held deletions go by themselves; 0 means never.
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

// Restore says what happens to pods that the Kubernetes API no longer knows since it went back in time.
type Restore struct {
	// KeepFor is how long they are kept unless somebody confirms; the default is 1h, and 0s keeps none.
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

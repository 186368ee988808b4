package config

import (
	"errors"
	"fmt"
	"time"
)

// Leases limits the renewals of the Leases by which Kubernetes knows that gateways are alive: n gateways of a replica are renewed every
// n/PerSecond seconds, but at least every LongestPeriod, and at most every ShortestLeasePeriod.
type Leases struct {
	// PerSecond is the number of renewals a second of this replica; 0 means 100.
	PerSecond int `json:"perSecond,omitempty"`
	// LongestPeriod bounds the time between two renewals of a Lease, also where PerSecond is exceeded then; the default is 20s. A longer
	// one needs a --node-monitor-grace-period of Kubernetes that is 30 s longer than it.
	LongestPeriod Duration `json:"longestPeriod,omitzero"`
}

// The periods of renewals. Of Kubernetes' default grace period of 50 s, the default leaves 30 s for heartbeats that are late or lost.
const (
	// ShortestLeasePeriod is a gateway's heartbeat, and a kubelet's own period.
	ShortestLeasePeriod    = 10 * time.Second
	DefaultLeasePeriod     = 20 * time.Second
	maxLeasePeriod         = 5 * time.Minute
	DefaultLeasesPerSecond = 100
)

func (l *Leases) setDefaults() {
	if l.PerSecond == 0 {
		l.PerSecond = DefaultLeasesPerSecond
	}
	if l.LongestPeriod == 0 {
		l.LongestPeriod = Duration(DefaultLeasePeriod)
	}
}

func (l Leases) validate() error {
	var faults []error
	if l.PerSecond < 0 {
		faults = append(faults, errors.New("leases.perSecond: negative"))
	}
	if period := time.Duration(l.LongestPeriod); period != 0 && (period < ShortestLeasePeriod || period > maxLeasePeriod) {
		faults = append(faults, fmt.Errorf("leases.longestPeriod: %s is not within %s and %s", period, ShortestLeasePeriod, maxLeasePeriod))
	}
	return errors.Join(faults...)
}

package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/config"
)

func TestLeases(t *testing.T) {
	for text, want := range map[string]config.Leases{
		"":                             {PerSecond: 100, LongestPeriod: config.Duration(20 * time.Second)},
		"leases: {perSecond: 1}":       {PerSecond: 1, LongestPeriod: config.Duration(20 * time.Second)},
		"leases: {longestPeriod: 10s}": {PerSecond: 100, LongestPeriod: config.Duration(10 * time.Second)},
		"leases: {perSecond: 300, longestPeriod: 5m}": {PerSecond: 300, LongestPeriod: config.Duration(5 * time.Minute)},
	} {
		if c, err := config.ParseCloudCore([]byte(minimal+text), "host"); err != nil || c.Leases != want {
			t.Errorf("%q: %+v, %v, want %+v", text, c.Leases, err, want)
		}
	}
	for text, want := range map[string]string{
		"leases: {perSecond: -1}":                    "leases.perSecond: negative",
		"leases: {perSecond: many}":                  "cannot unmarshal",
		"leases: {longestPeriod: 9s}":                "leases.longestPeriod: 9s is not within 10s and 5m0s",
		"leases: {longestPeriod: 5m1s}":              "leases.longestPeriod: 5m1s is not within 10s and 5m0s",
		"leases: {longestPeriod: -20s}":              "leases.longestPeriod: -20s is not within 10s and 5m0s",
		"leases: {longest: 20s}":                     "unknown field",
		"leases: {perSecond: -1, longestPeriod: 1h}": "leases.longestPeriod: 1h0m0s",
	} {
		if _, err := config.ParseCloudCore([]byte(minimal+text), "host"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/config"
)

const minimal = "hub: {urls: ['nats://h:4222'], nkeyFile: a, caFile: b, certFile: c, keyFile: d}\n"

func TestDeletionGuard(t *testing.T) {
	c, err := config.ParseCloudCore([]byte(minimal), "host")
	if err != nil || *c.DeletionGuard.Share != 0.5 || c.DeletionGuard.Minimum != 5 || c.DeletionGuard.After != 0 || time.Duration(*c.Restore.KeepFor) != time.Hour {
		t.Errorf("defaults: %+v, %v", c.DeletionGuard, err)
	}
	c, err = config.ParseCloudCore([]byte(minimal+"deletionGuard: {share: 0, minimum: 2, after: 1h30m}"), "host")
	if err != nil || *c.DeletionGuard.Share != 0 || c.DeletionGuard.Minimum != 2 || time.Duration(c.DeletionGuard.After) != 90*time.Minute {
		t.Errorf("values: %+v, %v", c.DeletionGuard, err)
	}
	for text, want := range map[string]string{
		"deletionGuard: {share: 2}":           "deletionGuard.share: 2 is not within 0 and 1",
		"deletionGuard: {minimum: -1}":        "deletionGuard.minimum: negative",
		"deletionGuard: {after: -1s}":         "deletionGuard.after: negative",
		"deletionGuard: {after: a long time}": "invalid duration",
		"restore: {keepFor: -1s}":             "restore.keepFor: negative",
		"deletionGuard: {afer: 1s}":           "unknown field",
	} {
		if _, err := config.ParseCloudCore([]byte(minimal+text), "host"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

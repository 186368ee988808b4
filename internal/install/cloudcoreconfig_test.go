package install_test

import (
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/internal/install"
)

func TestSettings_MergeConfiguration(t *testing.T) {
	settings := install.Settings{HubURLs: []string{"tls://hub.example.com:7422"}, Cells: 4, HubServers: 3}
	fresh, err := settings.MergeConfiguration("")
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.ParseCloudCore([]byte(fresh), "cloudcore-0")
	if err != nil {
		t.Fatalf("cloudcore does not take it: %v\n%s", err, fresh)
	}
	if len(c.Hub.URLs) != 3 || c.Replicas != 3 || c.Identity.Cells != 4 || !c.Identity.Enabled() || c.Identity.HubURLs[0] != settings.HubURLs[0] {
		t.Errorf("configuration %+v", c)
	}
	if c.Inspect.Address != "127.0.0.1:10284" || c.Inspect.ClientCAFile == "" {
		t.Errorf("frond status is answered at %+v", c.Inspect)
	}
	own := "# ours\nlogLevel: debug\nidentity:\n  renewWindow: 1h\n" + fresh[strings.Index(fresh, "identity:\n")+len("identity:\n"):] + fresh[:strings.Index(fresh, "identity:\n")]
	for name, tt := range map[string]struct {
		settings  install.Settings
		old, want string // want is part of it
		same      bool
	}{
		"as it is":      {settings, fresh, "cells: 4", true},
		"people's own":  {settings, own, "# ours", true},
		"new address":   {install.Settings{HubURLs: []string{"tls://b:1"}, Cells: 4, HubServers: 3}, own, "tls://b:1", false},
		"their fields":  {install.Settings{HubURLs: []string{"tls://b:1"}, Cells: 4, HubServers: 3}, own, "renewWindow: 1h", false},
		"partitions":    {install.Settings{Cells: 4, Partitions: 3, HubServers: 3}, own, "partitions: 3", false},
		"a server more": {install.Settings{Cells: 4, HubServers: 5}, own, "replicas: 5", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tt.settings.MergeConfiguration(tt.old)
			if err != nil || (got == tt.old) != tt.same || !strings.Contains(got, tt.want) {
				t.Errorf("%v\n%s\nwant same %t, and %q", err, got, tt.same, tt.want)
			}
			if again, err := tt.settings.MergeConfiguration(got); err != nil || again != got {
				t.Errorf("a second time it changes: %v\n%s", err, again)
			}
		})
	}
	if _, err := settings.MergeConfiguration("a: ["); err == nil || !strings.Contains(err.Error(), "cloudcore.yaml") {
		t.Errorf("a file that cannot be read: %v", err)
	}
}

package install_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/internal/install"
)

func TestSettings_MergeAskedPlansForNodes(t *testing.T) {
	for name, tt := range map[string]struct {
		have, asked, want install.Settings
	}{
		"nothing planned":      {want: install.Settings{Cells: 64, HubServers: 3}},
		"a large fleet":        {asked: install.Settings{Nodes: 50_000}, want: install.Settings{Nodes: 50_000, Cells: 200, HubServers: 5}},
		"own choices":          {asked: install.Settings{Nodes: 50_000, Cells: 300, HubServers: 3}, want: install.Settings{Nodes: 50_000, Cells: 300, HubServers: 3}},
		"installed before":     {have: install.Settings{Cells: 8, HubServers: 1}, asked: install.Settings{Nodes: 50_000}, want: install.Settings{Nodes: 50_000, Cells: 8, HubServers: 1}},
		"planned before":       {have: install.Settings{Nodes: 500, Cells: 64, HubServers: 3}, want: install.Settings{Nodes: 500, Cells: 64, HubServers: 3}},
		"another plan is fine": {have: install.Settings{Nodes: 500, Cells: 64, HubServers: 3}, asked: install.Settings{Nodes: 900}, want: install.Settings{Nodes: 900, Cells: 64, HubServers: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tt.have.MergeAsked(tt.asked)
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
	for _, nodes := range []int{-1, 100_001} {
		if got, err := (install.Settings{}).MergeAsked(install.Settings{Nodes: nodes}); err == nil {
			t.Errorf("%d nodes: %+v", nodes, got)
		}
	}
}

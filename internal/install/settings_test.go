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
		"nothing planned":      {want: install.Settings{Cells: 64, Partitions: 1, HubServers: 3}},
		"a large fleet":        {asked: install.Settings{Nodes: 50_000}, want: install.Settings{Nodes: 50_000, Cells: 200, Partitions: 8, HubServers: 5}},
		"own choices":          {asked: install.Settings{Nodes: 50_000, Cells: 300, HubServers: 3}, want: install.Settings{Nodes: 50_000, Cells: 300, Partitions: 8, HubServers: 3}},
		"installed before":     {have: install.Settings{Cells: 8, Partitions: 1, HubServers: 1}, asked: install.Settings{Nodes: 50_000}, want: install.Settings{Nodes: 50_000, Cells: 8, Partitions: 1, HubServers: 1}},
		"planned before":       {have: install.Settings{Nodes: 500, Cells: 64, Partitions: 2, HubServers: 3}, want: install.Settings{Nodes: 500, Cells: 64, Partitions: 2, HubServers: 3}},
		"another plan is fine": {have: install.Settings{Nodes: 500, Cells: 64, Partitions: 2, HubServers: 3}, asked: install.Settings{Nodes: 900}, want: install.Settings{Nodes: 900, Cells: 64, Partitions: 2, HubServers: 3}},
		"one server":           {asked: install.Settings{HubServers: 1}, want: install.Settings{Cells: 64, Partitions: 1, HubServers: 1}},
		"own partitions":       {asked: install.Settings{Partitions: 5}, want: install.Settings{Cells: 64, Partitions: 5, HubServers: 3}},
		"few cells":            {asked: install.Settings{Cells: 2}, want: install.Settings{Cells: 2, Partitions: 1, HubServers: 3}},
		"the most":             {asked: install.Settings{Nodes: 100_000}, want: install.Settings{Nodes: 100_000, Cells: 400, Partitions: 16, HubServers: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tt.have.MergeAsked(tt.asked)
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
	for _, tt := range []struct{ have, asked install.Settings }{
		{install.Settings{Cells: 64, Partitions: 1, HubServers: 3}, install.Settings{Partitions: 3}}, // must be built anew
		{asked: install.Settings{Cells: 4, Partitions: 5}},
		{asked: install.Settings{Partitions: -1}},
		{asked: install.Settings{Cells: 400, Partitions: 65}},
	} {
		if got, err := tt.have.MergeAsked(tt.asked); err == nil {
			t.Errorf("%+v over %+v: %+v", tt.asked, tt.have, got)
		}
	}
	for _, nodes := range []int{-1, 100_001} {
		if got, err := (install.Settings{}).MergeAsked(install.Settings{Nodes: nodes}); err == nil {
			t.Errorf("%d nodes: %+v", nodes, got)
		}
	}
}

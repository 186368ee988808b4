package epoch

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEpochRecord_DetectsRestore(t *testing.T) {
	now := time.Unix(1, 0)
	was := record{Cluster: "a", Count: 7, Version: "100"}
	for name, tt := range map[string]struct {
		before  record
		cluster string
		found   bool
		count   int64
		version string
		want    record
	}{
		"the first":                       {record{}, "a", false, 1, "5", record{Cluster: "a", Count: 1, Version: "5"}},
		"goes on":                         {was, "a", true, 8, "120", record{Cluster: "a", Count: 8, Version: "120"}},
		"others counted too":              {was, "a", true, 12, "120", record{Cluster: "a", Count: 12, Version: "120"}},
		"restored":                        {was, "a", true, 4, "90", record{Cluster: "a", Restores: 1, Since: now, Count: 4, Version: "90"}},
		"restored with higher revisions":  {was, "a", true, 7, "1000000100", record{Cluster: "a", Restores: 1, Since: now, Count: 7, Version: "1000000100"}},
		"restored to before the lease":    {was, "a", false, 1, "50", record{Cluster: "a", Restores: 1, Since: now, Count: 1, Version: "50"}},
		"somebody has removed the lease":  {was, "a", false, 1, "120", record{Cluster: "a", Count: 1, Version: "120"}},
		"another cluster":                 {record{Cluster: "a", Restores: 2, Count: 7, Version: "100"}, "b", false, 1, "50", record{Cluster: "b", Since: now, Count: 1, Version: "50"}},
		"versions are numbers, not texts": {record{Cluster: "a", Count: 7, Version: "99"}, "a", true, 8, "100", record{Cluster: "a", Count: 8, Version: "100"}},
	} {
		got, err := tt.before.advanceTo(tt.cluster, tt.found, tt.count, tt.version, now)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	if _, err := was.advanceTo("a", true, 8, "x", now); err == nil {
		t.Error("a version that is no number is compared")
	}
}

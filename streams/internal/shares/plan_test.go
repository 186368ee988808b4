package shares

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The stream has a limit of 1,000 bytes in all cases.
func TestPlanTrims(t *testing.T) {
	const limit = 1000
	many := map[string]uint64{}
	for i := range 30 {
		many[fmt.Sprintf("n%02d", i)] = 30
	}
	floods := map[string]uint64{}
	for i := range 60 {
		floods[fmt.Sprintf("n%02d", i)] = 1
	}
	for i := range 12 {
		floods[fmt.Sprintf("n%02d", i)] = 70
	}
	for name, c := range map[string]struct {
		bytes map[string]uint64
		want  []string
	}{
		"nobody":                  {},
		"one node has all":        {map[string]uint64{"a": 950}, nil},
		"equal nodes":             {many, nil},
		"two nodes, one floods":   {map[string]uint64{"a": 850, "b": 60}, []string{"a keeps 740"}},
		"two nodes, about equal":  {map[string]uint64{"a": 500, "b": 420}, nil},
		"three nodes, two flood":  {map[string]uint64{"a": 450, "b": 440, "c": 30}, []string{"a keeps 385", "b keeps 385"}},
		"a node that has nothing": {map[string]uint64{"a": 900, "b": 0}, []string{"a keeps 800"}},
		"more flood than at a time": {floods, []string{
			"n00 keeps 62", "n01 keeps 62", "n02 keeps 62", "n03 keeps 62", "n04 keeps 62", "n05 keeps 62", "n06 keeps 62", "n07 keeps 62", "n08 keeps 62", "n09 keeps 62",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, one := range planTrims(c.bytes, limit) {
				got = append(got, fmt.Sprintf("%s keeps %d", one.node, one.keep))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("trims (-want +got):\n%s", diff)
			}
		})
	}
}

func TestIsNearlyFull(t *testing.T) {
	for bytes, want := range map[uint64]bool{0: false, 900: false, 901: true, 1000: true} {
		if got := isNearlyFull(bytes, 1000); got != want {
			t.Errorf("%d of 1000 bytes: %t", bytes, got)
		}
	}
}

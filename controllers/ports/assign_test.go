package ports_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/controllers/ports"
)

func TestComputeAssignment(t *testing.T) {
	ranges := []config.PortRange{{First: 10, Last: 11}, {First: 20, Last: 20}}
	for name, tt := range map[string]struct {
		have   map[string]uint16
		wanted []string
		alive  string // names of one letter
		next   map[string]uint16
		full   []string
	}{
		"the first":                {nil, []string{"b", "a"}, "ab", map[string]uint16{"a": 10, "b": 11}, nil},
		"what is given stays":      {map[string]uint16{"c": 10}, []string{"c", "d"}, "cd", map[string]uint16{"c": 10, "d": 11}, nil},
		"full":                     {map[string]uint16{"a": 10, "b": 11}, []string{"c", "d"}, "abcd", map[string]uint16{"a": 10, "b": 11, "c": 20}, []string{"d"}},
		"the dead keep theirs":     {map[string]uint16{"x": 10}, []string{"a"}, "a", map[string]uint16{"x": 10, "a": 11}, nil},
		"until there is no other":  {map[string]uint16{"x": 10, "a": 11, "b": 20}, []string{"c"}, "abc", map[string]uint16{"a": 11, "b": 20, "c": 10}, nil},
		"out of the ranges now":    {map[string]uint16{"a": 99}, []string{"a"}, "a", map[string]uint16{"a": 10}, nil},
		"nobody else's is touched": {map[string]uint16{"a": 99, "b": 10}, []string{"b"}, "ab", map[string]uint16{"a": 99, "b": 10}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			alive := func(node string) bool {
				for _, letter := range tt.alive {
					if string(letter) == node {
						return true
					}
				}
				return false
			}
			next, full := ports.ComputeAssignment(tt.have, tt.wanted, alive, ranges)
			if diff := cmp.Diff(tt.next, next); diff != "" {
				t.Errorf("ports (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.full, full); diff != "" {
				t.Errorf("without one (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParsePorts_DropsDuplicates(t *testing.T) {
	got := ports.ParsePorts(map[string]string{"a": "10", "b": "10", "c": "11", "d": "x", "e": "0", "f": "70000", "g": "-1"})
	if diff := cmp.Diff(map[string]uint16{"c": 11}, got); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

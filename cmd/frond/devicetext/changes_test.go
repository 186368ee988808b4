package devicetext_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/cmd/frond/devicetext"
)

func TestPrinter_PrintsWhatChanged(t *testing.T) {
	value := func(s string) *string { return &s }
	first := deviceview.Device{
		Namespace: "plant", Name: "b", Node: "gw", Generation: 2, State: "online",
		Properties: []deviceview.Property{{Name: "t", Desired: value("30"), Reported: value("29"), ReportedAt: "1"}, {Name: "u"}},
		Conditions: []metav1.Condition{{Type: "Applied", Status: "False", ObservedGeneration: 2, Message: "t differs"}},
	}
	again := first
	again.Properties = []deviceview.Property{{Name: "t", Desired: value("30"), Reported: value("29"), ReportedAt: "2"}, {Name: "u"}}
	second := first
	second.Properties = []deviceview.Property{{Name: "t", Desired: value("31"), Reported: value("30"), ReportedAt: "3"}, {Name: "u", Reported: value("")}}
	second.Generation = 3 // the condition is about the generation before
	third := second
	third.Properties, third.State, third.Node = second.Properties[:1], "offline", "gw-2"
	for name, tt := range map[string]struct {
		before, after *deviceview.Device
		want          []string
	}{
		"new": {nil, &first, []string{
			"device: present", "node: gw", "state: online", "desired t: 30", "reported t: 29", "condition Applied: False (t differs)",
		}},
		"the same again":  {&first, &again, nil},
		"values":          {&first, &second, []string{"desired t: 30 -> 31", "reported t: 29 -> 30", "reported u: ", "condition Applied: False -> -"}},
		"state and place": {&second, &third, []string{"node: gw -> gw-2", "state: online -> offline", "reported u:  -> -"}},
		"gone":            {&third, nil, []string{"device: present -> -", "node: gw-2 -> -", "state: offline -> -", "desired t: 31 -> -", "reported t: 30 -> -"}},
		"never there":     {nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			p := devicetext.Printer{Out: &out}
			if tt.before != nil {
				p.Remember(tt.before)
			}
			if err := p.Print("plant/b", tt.after, time.Now()); err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(out.String()) {
				_, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "plant/b  ")
				got = append(got, text)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

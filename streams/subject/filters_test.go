package subject_test

import (
	"slices"
	"testing"

	"github.com/frond-edge/frond/streams/subject"
)

// The filters match the subjects of the topics that the MQTT filter matches, and no others.
func TestMessageFilters(t *testing.T) {
	for filter, want := range map[string][]string{
		"line3/user/alarm":   {"messages.gw-17.line3.user.alarm"},
		"line3/user/+/x":     {"messages.gw-17.line3.user.*.x"},
		"line3/user/#":       {"messages.gw-17.line3.user", "messages.gw-17.line3.user.>"},
		"line3/+/#":          {"messages.gw-17.line3.*", "messages.gw-17.line3.*.>"},
		"#":                  {"messages.gw-17.>"},
		"line3/user/a*b/>/.": {"messages.gw-17.line3.user.a=2Ab.=3E.=2E"},
		"line3/$a":           {"messages.gw-17.line3.$a"},
	} {
		if got := subject.MessageFilters("gw-17", filter); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", filter, got, want)
		}
	}
	for _, topic := range []string{"line3/user/alarm", "a.b/$x/$/ /é", "a//b"} {
		if got := subject.MessageFilters("gw.1", topic); len(got) != 1 || got[0] != subject.MessageSubject("gw.1", topic) {
			t.Errorf("%s: %q, want the subject of the topic", topic, got)
		}
	}
}

package rules

import (
	"errors"
	"testing"

	"github.com/frond-edge/frond/cloud/rules/target"
	"github.com/frond-edge/frond/controllers/rules/delivery"
)

// What can never be sent is refused, so that it does not stop the rule; an address that is not allowed now may be later.
func TestPost(t *testing.T) {
	targets := target.New(nil)
	t.Cleanup(targets.Close)
	for name, tt := range map[string]struct {
		url, topic string
		refused    bool
	}{
		"header with a control character": {"http://127.0.0.1:1/", "line3/user/\x01", true},
		"no URL":                          {"http://[::1", "line3/user/a", true},
		"address that is not allowed":     {"http://127.0.0.1:1/", "line3/user/a", false},
	} {
		err := post(t.Context(), targets, tt.url, delivery.Message{ID: "gw-1/run/1", Node: "gw-1", Topic: tt.topic})
		if err == nil || errors.Is(err, delivery.ErrRefused) != tt.refused || errors.Is(err, target.ErrDenied) == tt.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

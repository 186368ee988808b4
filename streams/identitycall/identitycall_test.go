package identitycall_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/streams/identitycall"
	"github.com/frond-edge/frond/test/kit"
)

var (
	errNoAnswer = errors.New("no answer")
	errSign     = errors.New("the key cannot sign")
)

// calls answers requests of one place, and records their verbs.
type calls struct {
	answer identity.Enrolment
	err    error
	verbs  []string
	last   any
}

func (c *calls) call(_ context.Context, verb string, request, answer any) error {
	c.verbs, c.last = append(c.verbs, verb), request
	if into, ok := answer.(*identity.Enrolment); ok {
		*into = c.answer
	}
	return c.err
}

func testKey(public string) identitycall.Key {
	return identitycall.Key{Public: public, Sign: func(text []byte) ([]byte, error) { return []byte(public + " signs " + string(text)), nil }}
}

// An enrolment is asked for in the lobby; without an answer there, the key that the cloud may have recorded is renewed in the own cell.
func TestEnrol_LostAnswerIsAskedForInOwnCell(t *testing.T) {
	now := time.Unix(1000, 0)
	yes, no, neither := identity.Enrolment{Now: now, Expires: now.Add(time.Hour)}, identity.Enrolment{Reason: "wrong token"}, identity.Enrolment{}
	for name, tt := range map[string]struct {
		lobby, cell           calls
		want                  identity.Enrolment
		failure               string
		lobbyVerbs, cellVerbs []string
	}{
		"accepted":       {lobby: calls{answer: yes}, want: yes, lobbyVerbs: []string{"enrol"}},
		"refused":        {lobby: calls{answer: no}, want: no, lobbyVerbs: []string{"enrol"}},
		"recorded":       {lobby: calls{err: errNoAnswer}, cell: calls{answer: yes}, want: yes, lobbyVerbs: []string{"enrol"}, cellVerbs: []string{"renew"}},
		"no answer":      {lobby: calls{err: errNoAnswer}, cell: calls{err: errNoAnswer}, failure: "no answer", lobbyVerbs: []string{"enrol"}, cellVerbs: []string{"renew"}},
		"invalid answer": {lobby: calls{answer: neither}, cell: calls{answer: neither}, failure: "neither yes nor no", lobbyVerbs: []string{"enrol"}, cellVerbs: []string{"renew"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := identitycall.Enrol(t.Context(), tt.lobby.call, "edge-1", "token", testKey("K"), func(ctx context.Context) (identity.Enrolment, error) {
				return identitycall.Renew(ctx, tt.cell.call, "edge-1", testKey("K"), testKey("K"), "nonce")
			})
			if (err != nil) != (tt.failure != "") || err != nil && !strings.Contains(err.Error(), tt.failure) {
				t.Fatalf("error %v, want %q", err, tt.failure)
			}
			if err == nil && (got.Reason != tt.want.Reason || !got.Expires.Equal(tt.want.Expires)) {
				t.Errorf("got %+v", got)
			}
			if !slices.Equal(tt.lobby.verbs, tt.lobbyVerbs) || !slices.Equal(tt.cell.verbs, tt.cellVerbs) {
				t.Errorf("asked %v in the lobby, %v in the cell", tt.lobby.verbs, tt.cell.verbs)
			}
		})
	}
}

// A renewal is signed by the new key, approved by the current one, and shows what the new key would have shown on the link.
func TestRenew_SignsByBothKeys(t *testing.T) {
	now := time.Unix(1000, 0)
	cell := calls{answer: identity.Enrolment{Now: now, Expires: now.Add(time.Hour)}}
	_, err := identitycall.Renew(t.Context(), cell.call, "edge-1", testKey("NEW"), testKey("OLD"), "nonce")
	kit.Must(t, err)
	r, ok := cell.last.(identity.RenewRequest)
	proof := string(identity.Proof(identity.VerbRenew, "edge-1", "NEW"))
	if !ok || r.Key != "NEW" || r.Current != "OLD" || r.Nonce != "nonce" || string(r.Signature) != "NEW signs "+proof ||
		string(r.Approval) != "OLD signs "+proof || string(r.Link) != "NEW signs nonce" {
		t.Errorf("request %+v", cell.last)
	}
	broken := identitycall.Key{Public: "B", Sign: func([]byte) ([]byte, error) { return nil, errSign }}
	if _, err := identitycall.Renew(t.Context(), cell.call, "edge-1", broken, testKey("OLD"), ""); !errors.Is(err, errSign) {
		t.Errorf("error %v", err)
	}
	if _, err := identitycall.Enrol(t.Context(), cell.call, "edge-1", "t", broken, nil); !errors.Is(err, errSign) {
		t.Errorf("error %v", err)
	}
}

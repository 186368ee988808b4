package decision_test

import (
	"testing"

	"github.com/frond-edge/frond/controllers/desired/decision"
	"github.com/frond-edge/frond/controllers/desired/payload"
	"github.com/frond-edge/frond/controllers/desired/published"
)

func TestDecide(t *testing.T) {
	for name, tt := range map[string]struct {
		wantUID, wantDigest string
		sequence            uint64
		deleted             bool
		uid, digest         string
		keep                bool
		acked               uint64
		want                decision.Action
	}{
		"new":                              {wantUID: "u", wantDigest: "d", want: decision.Publish},
		"same":                             {wantUID: "u", wantDigest: "d", sequence: 1, uid: "u", digest: "d", want: decision.None},
		"changed":                          {wantUID: "u", wantDigest: "e", sequence: 1, uid: "u", digest: "d", want: decision.Publish},
		"created again, same content":      {wantUID: "v", wantDigest: "d", sequence: 1, uid: "u", digest: "d", want: decision.Publish},
		"back after its tombstone":         {wantUID: "u", wantDigest: "d", sequence: 2, deleted: true, uid: "u", acked: 9, want: decision.Publish},
		"changed while the node is absent": {wantUID: "u", wantDigest: "e", sequence: 1, uid: "u", digest: "d", keep: true, want: decision.Publish},
		"not wanted, not held":             {want: decision.None},
		"no longer wanted":                 {sequence: 1, uid: "u", want: decision.Tombstone},
		"kept for an absent node":          {sequence: 1, uid: "u", keep: true, want: decision.None},
		"tombstone not acked":              {sequence: 5, deleted: true, acked: 4, want: decision.None},
		"tombstone acked":                  {sequence: 5, deleted: true, acked: 5, want: decision.Purge},
	} {
		t.Run(name, func(t *testing.T) {
			in := decision.Input{
				Published: published.Record{Sequence: tt.sequence, Deleted: tt.deleted, UID: tt.uid, Digest: tt.digest},
				Retain:    tt.keep, AckedSequence: tt.acked, Purgeable: true,
			}
			if tt.wantUID != "" {
				in.Want = &payload.Payload{UID: tt.wantUID, Digest: tt.wantDigest}
			}
			if got := decision.Decide(in); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

package membership

import (
	"hash/fnv"
	"slices"
)

// ownerOf returns the member with the highest hash of (member, node) (rendezvous hashing): when one leaves, only its
// own nodes move.
func ownerOf(live []string, node string) string {
	var best string
	var most uint64
	for _, member := range live {
		h := fnv.New64a()
		_, _ = h.Write([]byte(member + "\x00" + node)) // a hash never fails
		if score := mixBits(h.Sum64()); best == "" || score > most {
			best, most = member, score
		}
	}
	return best
}

// mixBits spreads FNV's last bytes over all bits (the finaliser of MurmurHash3); otherwise similar names would share an owner.
func mixBits(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// maxViews is how many changes of the live set are remembered. A node that was owned all along gets a new term with
// each further change, which costs a comparison with the stream.
const maxViews = 16

// membershipView is the live set during one term; empty while this replica was away.
type membershipView struct {
	term uint64
	live []string
}

// viewHistory is the sequence of live sets, of which it keeps the last maxViews, the present one at the end.
type viewHistory struct {
	views   []membershipView
	changed chan struct{} // closed at the next change
}

func newViewHistory() viewHistory { return viewHistory{changed: make(chan struct{})} }

// begin starts a new view.
func (h *viewHistory) begin(live []string) {
	term := uint64(1)
	if n := len(h.views); n > 0 {
		term = h.views[n-1].term + 1
	}
	h.views = append(h.views[max(0, len(h.views)+1-maxViews):], membershipView{term: term, live: live})
	close(h.changed)
	h.changed = make(chan struct{})
}

// termOf returns the term in which a member's present ownership of a node began, 0 if it does not own it.
func (h *viewHistory) termOf(member, node string) (term uint64) {
	for _, v := range slices.Backward(h.views) {
		if ownerOf(v.live, node) != member {
			break
		}
		term = v.term
	}
	return term
}

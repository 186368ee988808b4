package enroll

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/edged/hubca"
	"github.com/frond-edge/frond/edged/identitydir"
	"github.com/frond-edge/frond/internal/failpoint"
)

// keyring holds a gateway's keys and the cloud's record of them, and knows which key the link has. Its methods may be called
// concurrently.
type keyring struct {
	node string
	// token is the join token, or tokenFile contains it.
	token, tokenFile string
	log              *zap.Logger

	mu     sync.Mutex // guards all fields below
	folder *identitydir.Folder
	// linkKey is the key of the link: that of the last connection, or the one to which it was carried over. nonce is the
	// hub's of that connection, and dials counts the connections since the last link.
	linkKey *identitydir.Key
	nonce   string
	dials   int
	// refused is the reason why the cloud does not renew the key; "" if it may.
	refused string
}

// record returns the cloud's latest answer; zero before there is one.
func (r *keyring) record() identitydir.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.folder.Record
}

// refusal returns why the cloud does not renew this gateway's key, and what to do; "" if the cloud has not refused.
func (r *keyring) refusal() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

func (r *keyring) setRefused(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = reason
}

// credential signs a hub's nonce.
func (r *keyring) credential(nonce []byte) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.folder
	if f.Current == nil {
		return nil, errors.New("this gateway has no key yet")
	}
	r.linkKey, r.nonce = f.Current, string(nonce)
	// The cloud may know only the old key, if it has lost its answer or was restored from an older copy, or only the next
	// one, if that was accepted once. Usually no cloudcore is running, so the other keys are tried only each fourth time.
	const patient, turn = 3, 4
	if others := f.OtherKeys(); r.dials >= patient && (r.dials-patient)%turn == 0 && len(others) > 0 {
		r.linkKey = others[(r.dials-patient)/turn%len(others)]
	}
	r.dials++
	c := identity.Credential{Node: r.node, Key: r.linkKey.Public}
	if f.Record.Key == "" {
		token, err := r.readToken()
		if err != nil {
			return nil, err
		}
		c.Token = token
	}
	signature, err := r.linkKey.Sign(nonce)
	if err != nil {
		return nil, fmt.Errorf("sign the hub's nonce: %w", err)
	}
	return identity.EncodeCredential(c, signature)
}

func (r *keyring) readToken() (string, error) {
	if r.token != "" || r.tokenFile == "" {
		return r.token, nil
	}
	data, err := os.ReadFile(r.tokenFile)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	return string(bytes.TrimSpace(data)), nil
}

func (r *keyring) makeKey() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.folder.MakeCurrent()
}

// carryLink records that the link now belongs to another key, if it still is the one with that nonce.
func (r *keyring) carryLink(nonce string, to *identitydir.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nonce != nonce {
		return false
	}
	r.linkKey = to
	return true
}

// adoptLinkKey makes the key that the hub has accepted the current one.
func (r *keyring) adoptLinkKey(home bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.folder
	switch r.linkKey {
	case nil, f.Current:
	case f.Old:
		r.log.Warn("the hub knows this gateway's old key only, going back to it and renewing again")
		if err := f.RevertToOld(); err != nil {
			return err
		}
	case f.Next:
		r.log.Warn("the hub knows this gateway's next key only, whose answer was lost: taking it")
		if err := f.AdoptNext(); err != nil {
			return err
		}
	}
	if home {
		r.dials = 0
	}
	return nil
}

// isLinkOutdated reports whether the link belongs to another key than the current one: the cloud did not know that key, as
// no cloudcore has run since the link was made. The cloud ends such a link with the next change of keys, and the answer
// with it: it remembers no more than two.
func (r *keyring) isLinkOutdated() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.linkKey != r.folder.Current
}

// makeNextKey returns the public half of the next key; its seed is on disk.
func (r *keyring) makeNextKey() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.folder.MakeNext(); err != nil {
		return "", err
	}
	return r.folder.Next.Public, nil
}

// dialCount returns the number of connections since the last link.
func (r *keyring) dialCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dials
}

// resetDials begins to count connections anew.
func (r *keyring) resetDials() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dials = 0
}

// current returns the public half of the current key, which must exist.
func (r *keyring) current() *identitydir.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.folder.Current
}

// renewal returns a key, current or next, by its public half, the current one, and the nonce of the link.
func (r *keyring) renewal(public string) (wanted, current *identitydir.Key, nonce string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.folder.Of(public), r.folder.Current, r.nonce
}

// save saves the CAs that an answer brings, then the record.
func (r *keyring) save(answer identity.Enrolment, record identitydir.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ca := range []struct {
		file, text string
		save       func([]byte) error
	}{
		{r.folder.HubCA(), answer.HubCA, r.folder.SaveHubCA},
		{r.folder.ClusterCA(), answer.ClusterCA, r.folder.SaveClusterCA},
	} {
		if ca.text == "" {
			continue
		}
		if hubca.NewPool([]byte(ca.text)) == nil {
			r.log.Warn("the cloud sent no certificate where there should be one, keeping what is here", zap.String("file", ca.file))
			continue
		}
		if err := ca.save([]byte(ca.text)); err != nil {
			return err
		}
	}
	failpoint.At("enrol.trusted")
	r.refused = ""
	return r.folder.SaveRecord(record)
}

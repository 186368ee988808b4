package enroll

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/internal/failpoint"
)

// The files of the folder.
const (
	seedFile      = "node.nk"      // the gateway's current key
	nextFile      = "node.nk.next" // the key that replaces it
	oldFile       = "node.nk.old"  // the previous key; the cloud knows it again after a restore of an older copy
	hubCAFile     = "hub-ca.crt"
	clusterCAFile = "cluster-ca.crt"
	recordFile    = "enrolment.json"
	clockFile     = "clock.json"

	secretMode = 0o600
	dirMode    = 0o700
)

// ErrOtherNode reports that the folder belongs to another node.
var ErrOtherNode = errors.New("this machine is enrolled under another name")

// ErrDamaged reports that the folder lacks parts of the identity, permanently. All other faults may be temporary.
var ErrDamaged = errors.New("the identity is damaged")

// Record is the cloud's answer when it recorded the key.
type Record struct {
	Node string `json:"node"`
	// Key is the recorded public key; "" for none.
	Key     string    `json:"key"`
	Issued  time.Time `json:"issued,omitzero"`
	Expires time.Time `json:"expires,omitzero"`
	HubURLs []string  `json:"hubURLs,omitempty"`
}

// nodeKey is a key pair and its public half.
type nodeKey struct {
	nkeys.KeyPair
	public string
}

// identityDir is the state on disk and a copy in memory; the Renewer guards it.
type identityDir struct {
	dir    string
	record Record
	// current is nil only before the first enrolment; next and old usually are.
	current, next, old *nodeKey
}

// openIdentityDir reads the folder and completes an interrupted change.
func openIdentityDir(dir, node string) (*identityDir, error) {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("make the folder of the identity: %w", err)
	}
	if err := os.Chmod(dir, dirMode); err != nil {
		return nil, fmt.Errorf("protect the folder of the identity: %w", err)
	}
	f := &identityDir{dir: dir}
	if err := f.readJSON(recordFile, &f.record); err != nil {
		return nil, err
	}
	if f.record.Node != "" && f.record.Node != node {
		return nil, fmt.Errorf("%w: %s says %q, not %q: run frond reset first, or use that name", ErrOtherNode, f.path(recordFile), f.record.Node, node)
	}
	var err error
	for name, k := range map[string]**nodeKey{seedFile: &f.current, nextFile: &f.next, oldFile: &f.old} {
		if *k, err = f.readKey(name); err != nil {
			return nil, err
		}
	}
	if f.next != nil && f.next.public == f.record.Key {
		if err := f.promoteNext(); err != nil {
			return nil, err
		}
	}
	if f.record.Key != "" && (f.current == nil || f.current.public != f.record.Key) {
		return nil, fmt.Errorf("%w: the key in %s is not the one in %s: bring back that file, or run frond reset and join with a new token",
			ErrDamaged, f.path(seedFile), f.path(recordFile))
	}
	return f, nil
}

func (f *identityDir) path(name string) string { return filepath.Join(f.dir, name) }

// readJSON leaves v unchanged if the file does not exist.
func (f *identityDir) readJSON(name string, v any) error {
	data, err := os.ReadFile(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return readError(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%w: read %s: %w", ErrDamaged, f.path(name), err)
	}
	return nil
}

// readError distinguishes a bad disk from a temporary fault.
func readError(err error) error {
	if errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EISDIR) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return fmt.Errorf("read the identity: %w", err)
}

func (f *identityDir) writeJSON(name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return f.writeFile(name, append(data, '\n'))
}

// writeFile replaces a file as a whole; when it returns, the new one is on disk.
func (f *identityDir) writeFile(name string, data []byte) error {
	if err := renameio.WriteFile(f.path(name), data, secretMode); err != nil {
		return fmt.Errorf("write %s: %w", f.path(name), err)
	}
	return f.syncDir()
}

func (f *identityDir) syncDir() error {
	d, err := os.Open(f.dir)
	if err != nil {
		return fmt.Errorf("sync the folder of the identity: %w", err)
	}
	defer func() { _ = d.Close() }() // opened for reading
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync the folder of the identity: %w", err)
	}
	return nil
}

func (f *identityDir) removeFile(name string) error {
	if err := os.Remove(f.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", f.path(name), err)
	}
	return f.syncDir()
}

// readKey returns nil if the file does not exist.
func (f *identityDir) readKey(name string) (*nodeKey, error) {
	data, err := os.ReadFile(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no key is a state of its own
	}
	if err != nil {
		return nil, readError(err)
	}
	pair, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(data))))
	if err != nil {
		return nil, fmt.Errorf("%w: the key in %s: %w", ErrDamaged, f.path(name), err)
	}
	return newNodeKey(pair)
}

func newNodeKey(pair nkeys.KeyPair) (*nodeKey, error) {
	public, err := pair.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("public half of the key: %w", err)
	}
	return &nodeKey{pair, public}, nil
}

// createKey creates a key and writes it to disk. It returns nil if the key may not be on disk: such a key must never be sent.
func (f *identityDir) createKey(name string) (*nodeKey, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	k, err := newNodeKey(pair)
	if err != nil {
		return nil, err
	}
	if err := f.writeKey(name, k); err != nil {
		return nil, err
	}
	return k, nil
}

func (f *identityDir) writeKey(name string, k *nodeKey) error {
	seed, err := k.Seed()
	if err != nil {
		return fmt.Errorf("seed of the key: %w", err)
	}
	return f.writeFile(name, seed)
}

// saveRecord saves the cloud's answer for a key, current or next. The write of the record is the moment of the change:
// before it the current key counts, after it the next one.
func (f *identityDir) saveRecord(r Record) error {
	if err := f.writeJSON(recordFile, r); err != nil {
		return err
	}
	f.record = r
	failpoint.At("enrol.recorded")
	if f.next == nil || f.next.public != r.Key {
		return nil
	}
	return f.promoteNext()
}

// promoteNext makes the next key the current one, and keeps the replaced key as the old one. It may be run again.
func (f *identityDir) promoteNext() error {
	if f.current != nil && f.current.public != f.next.public {
		if err := f.writeKey(oldFile, f.current); err != nil {
			return err
		}
		f.old = f.current
	}
	failpoint.At("enrol.kept")
	if err := os.Rename(f.path(nextFile), f.path(seedFile)); err != nil {
		return fmt.Errorf("take the new key: %w", err)
	}
	f.current, f.next = f.next, nil
	return f.syncDir()
}

// revertToOld makes the old key the current one again, and the current one the next: the hub knows only the old one. Its
// times are no longer known; the zero times make it due at once.
func (f *identityDir) revertToOld() error {
	r := f.record
	life := r.Expires.Sub(r.Issued)
	r.Key, r.Issued, r.Expires = f.old.public, r.Issued.Add(-life), r.Expires.Add(-life)
	if err := f.writeKey(nextFile, f.current); err != nil {
		return err
	}
	f.next = f.current
	// A crash after this leaves a record of one key beside the file of the other: the record comes last. openIdentityDir
	// repairs the key file of that state by promoting the next key once more.
	if err := f.writeKey(seedFile, f.old); err != nil {
		return err
	}
	f.current = f.old
	if err := f.writeJSON(recordFile, r); err != nil {
		return err
	}
	f.record = r
	return f.forgetOld()
}

// adoptNext makes the next key the current one without an answer of the cloud, because the hub accepts it.
func (f *identityDir) adoptNext() error {
	r := f.record
	r.Key = f.next.public
	return f.saveRecord(r)
}

// MakeCurrent creates the first key, unless there is one.
func (f *identityDir) MakeCurrent() error {
	if f.current != nil {
		return nil
	}
	made, err := f.createKey(seedFile)
	if err == nil {
		f.current = made
	}
	return err
}

// MakeNext creates the next key, unless there is one.
func (f *identityDir) MakeNext() error {
	if f.next != nil {
		return nil
	}
	made, err := f.createKey(nextFile)
	if err == nil {
		f.next = made
	}
	return err
}

// Of returns the current or the next key by its public half; the current one for any other.
func (f *identityDir) Of(public string) *nodeKey {
	if f.next != nil && f.next.public == public {
		return f.next
	}
	return f.current
}

// HubCA and ClusterCA are the files of the CAs.
func (f *identityDir) HubCA() string { return f.path(hubCAFile) }

// ClusterCA is the file with the CAs of the Kubernetes cluster.
func (f *identityDir) ClusterCA() string { return f.path(clusterCAFile) }

// Lobby is the folder of a temporary leaf.
func (f *identityDir) Lobby() string { return f.path("lobby") }

// SaveHubCA and SaveClusterCA replace the certificates of a CA.
func (f *identityDir) SaveHubCA(text []byte) error { return f.writeFile(hubCAFile, text) }

// SaveClusterCA replaces the CAs of the Kubernetes cluster.
func (f *identityDir) SaveClusterCA(text []byte) error { return f.writeFile(clusterCAFile, text) }

// clockFloor is the content of clockFile.
type clockFloor struct {
	Floor time.Time `json:"floor"`
}

// ClockFloor returns the least possible time that was saved last; zero for none.
func (f *identityDir) ClockFloor() (time.Time, error) {
	var saved clockFloor
	err := f.readJSON(clockFile, &saved)
	return saved.Floor, err
}

// SaveClockFloor saves the least possible time.
func (f *identityDir) SaveClockFloor(floor time.Time) error { return f.writeJSON(clockFile, clockFloor{floor}) }

// otherKeys returns the keys beside the current one that the hub may know.
func (f *identityDir) otherKeys() []*nodeKey {
	return slices.DeleteFunc([]*nodeKey{f.old, f.next}, func(k *nodeKey) bool { return k == nil })
}

// forgetOld removes the previous key.
func (f *identityDir) forgetOld() error {
	f.old = nil
	return f.removeFile(oldFile)
}

// Package identitydir holds the folder of a gateway's identity: its keys, the CAs of the hub and of the cluster, and the cloud's latest
// answer. Each file is replaced whole and synced, so that an interrupted change is completed by the next Open.
package identitydir

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

// Key is a key pair and its public half.
type Key struct {
	nkeys.KeyPair
	Public string
}

// Folder is the state on disk and a copy in memory; the Renewer guards it.
type Folder struct {
	dir    string
	Record Record
	// current is nil only before the first enrolment; next and old usually are.
	Current, Next, Old *Key
}

// Open reads the folder and completes an interrupted change.
func Open(dir, node string) (*Folder, error) {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("make the folder of the identity: %w", err)
	}
	if err := os.Chmod(dir, dirMode); err != nil {
		return nil, fmt.Errorf("protect the folder of the identity: %w", err)
	}
	f := &Folder{dir: dir}
	if err := f.readJSON(recordFile, &f.Record); err != nil {
		return nil, err
	}
	if f.Record.Node != "" && f.Record.Node != node {
		return nil, fmt.Errorf("%w: %s says %q, not %q: run frond reset first, or use that name", ErrOtherNode, f.path(recordFile), f.Record.Node, node)
	}
	var err error
	for name, k := range map[string]**Key{seedFile: &f.Current, nextFile: &f.Next, oldFile: &f.Old} {
		if *k, err = f.readKey(name); err != nil {
			return nil, err
		}
	}
	if f.Next != nil && f.Next.Public == f.Record.Key {
		if err := f.promoteNext(); err != nil {
			return nil, err
		}
	}
	if f.Record.Key != "" && (f.Current == nil || f.Current.Public != f.Record.Key) {
		return nil, fmt.Errorf("%w: the key in %s is not the one in %s: bring back that file, or run frond reset and join with a new token",
			ErrDamaged, f.path(seedFile), f.path(recordFile))
	}
	return f, nil
}

func (f *Folder) path(name string) string { return filepath.Join(f.dir, name) }

// readJSON leaves v unchanged if the file does not exist.
func (f *Folder) readJSON(name string, v any) error {
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

func (f *Folder) writeJSON(name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return f.writeFile(name, append(data, '\n'))
}

// writeFile replaces a file as a whole; when it returns, the new one is on disk.
func (f *Folder) writeFile(name string, data []byte) error {
	if err := renameio.WriteFile(f.path(name), data, secretMode); err != nil {
		return fmt.Errorf("write %s: %w", f.path(name), err)
	}
	return f.syncDir()
}

func (f *Folder) syncDir() error {
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

func (f *Folder) removeFile(name string) error {
	if err := os.Remove(f.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", f.path(name), err)
	}
	return f.syncDir()
}

// readKey returns nil if the file does not exist.
func (f *Folder) readKey(name string) (*Key, error) {
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

func newNodeKey(pair nkeys.KeyPair) (*Key, error) {
	public, err := pair.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("public half of the key: %w", err)
	}
	return &Key{pair, public}, nil
}

// createKey creates a key and writes it to disk. It returns nil if the key may not be on disk: such a key must never be sent.
func (f *Folder) createKey(name string) (*Key, error) {
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

func (f *Folder) writeKey(name string, k *Key) error {
	seed, err := k.Seed()
	if err != nil {
		return fmt.Errorf("seed of the key: %w", err)
	}
	return f.writeFile(name, seed)
}

// SaveRecord saves the cloud's answer for a key, current or next. The write of the record is the moment of the change:
// before it the current key counts, after it the next one.
func (f *Folder) SaveRecord(r Record) error {
	if err := f.writeJSON(recordFile, r); err != nil {
		return err
	}
	f.Record = r
	failpoint.At("enrol.recorded")
	if f.Next == nil || f.Next.Public != r.Key {
		return nil
	}
	return f.promoteNext()
}

// promoteNext makes the next key the current one, and keeps the replaced key as the old one. It may be run again.
func (f *Folder) promoteNext() error {
	if f.Current != nil && f.Current.Public != f.Next.Public {
		if err := f.writeKey(oldFile, f.Current); err != nil {
			return err
		}
		f.Old = f.Current
	}
	failpoint.At("enrol.kept")
	if err := os.Rename(f.path(nextFile), f.path(seedFile)); err != nil {
		return fmt.Errorf("take the new key: %w", err)
	}
	f.Current, f.Next = f.Next, nil
	return f.syncDir()
}

// RevertToOld makes the old key the current one again, and the current one the next: the hub knows only the old one. Its
// times are no longer known; the zero times make it due at once.
func (f *Folder) RevertToOld() error {
	r := f.Record
	life := r.Expires.Sub(r.Issued)
	r.Key, r.Issued, r.Expires = f.Old.Public, r.Issued.Add(-life), r.Expires.Add(-life)
	if err := f.writeKey(nextFile, f.Current); err != nil {
		return err
	}
	f.Next = f.Current
	// A crash after this leaves a record of one key beside the file of the other: the record comes last. openIdentityDir
	// repairs the key file of that state by promoting the next key once more.
	if err := f.writeKey(seedFile, f.Old); err != nil {
		return err
	}
	f.Current = f.Old
	if err := f.writeJSON(recordFile, r); err != nil {
		return err
	}
	f.Record = r
	return f.forgetOld()
}

// AdoptNext makes the next key the current one without an answer of the cloud, because the hub accepts it.
func (f *Folder) AdoptNext() error {
	r := f.Record
	r.Key = f.Next.Public
	return f.SaveRecord(r)
}

// MakeCurrent creates the first key, unless there is one.
func (f *Folder) MakeCurrent() error {
	if f.Current != nil {
		return nil
	}
	made, err := f.createKey(seedFile)
	if err == nil {
		f.Current = made
	}
	return err
}

// MakeNext creates the next key, unless there is one.
func (f *Folder) MakeNext() error {
	if f.Next != nil {
		return nil
	}
	made, err := f.createKey(nextFile)
	if err == nil {
		f.Next = made
	}
	return err
}

// Of returns the current or the next key by its public half; the current one for any other.
func (f *Folder) Of(public string) *Key {
	if f.Next != nil && f.Next.Public == public {
		return f.Next
	}
	return f.Current
}

// HubCA and ClusterCA are the files of the CAs.
func (f *Folder) HubCA() string { return f.path(hubCAFile) }

// ClusterCA is the file with the CAs of the Kubernetes cluster.
func (f *Folder) ClusterCA() string { return f.path(clusterCAFile) }

// Lobby is the folder of a temporary leaf.
func (f *Folder) Lobby() string { return f.path("lobby") }

// SaveHubCA and SaveClusterCA replace the certificates of a CA.
func (f *Folder) SaveHubCA(text []byte) error { return f.writeFile(hubCAFile, text) }

// SaveClusterCA replaces the CAs of the Kubernetes cluster.
func (f *Folder) SaveClusterCA(text []byte) error { return f.writeFile(clusterCAFile, text) }

// clockFloor is the content of clockFile.
type clockFloor struct {
	Floor time.Time `json:"floor"`
}

// ClockFloor returns the least possible time that was saved last; zero for none.
func (f *Folder) ClockFloor() (time.Time, error) {
	var saved clockFloor
	err := f.readJSON(clockFile, &saved)
	return saved.Floor, err
}

// SaveClockFloor saves the least possible time.
func (f *Folder) SaveClockFloor(floor time.Time) error {
	return f.writeJSON(clockFile, clockFloor{floor})
}

// OtherKeys returns the keys beside the current one that the hub may know.
func (f *Folder) OtherKeys() []*Key {
	return slices.DeleteFunc([]*Key{f.Old, f.Next}, func(k *Key) bool { return k == nil })
}

// forgetOld removes the previous key.
func (f *Folder) forgetOld() error {
	f.Old = nil
	return f.removeFile(oldFile)
}

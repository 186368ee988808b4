package install

import (
	"bytes"
	"crypto"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/internal/install/pki"
)

// Files maps names, "folder/entry", to contents; a folder is a Secret of the cluster.
type Files map[string][]byte

// The folders, each for one reader that needs no other.
const (
	FolderCA        = "frond-ca"        // the CA with its key: only the commands of package install need it
	FolderCloudcore = "frond-cloudcore" // read by every cloudcore
	FolderAdmin     = "frond-admin"     // for people with the nats tool
)

// FolderHub is the folder of hub server number i, counted from 0.
func FolderHub(i int) string { return fmt.Sprintf("frond-hub-%d", i) }

// The entries of folders.
const (
	EntryCert   = "tls.crt" // ends with the CA's certificate
	EntryKey    = "tls.key"
	EntryBundle = "ca.crt" // all trusted CAs; in FolderCA the one that signs
	EntryConfig = "nats-server.conf"
	// EntryAuthorityKey is the key of the CA that signs.
	EntryAuthorityKey = "ca.key"

	entryNext        = "next.crt"
	entryNextKey     = "next.key"
	entryPrevious    = "previous.crt"
	entryCrossSigned = "vouchers.crt" // cross-signed certificates of later CAs by earlier ones, the newest first

	EntryHubSeed   = "hub.nk"   // of cloudcore's user in the account FROND
	EntryAuthSeed  = "auth.nk"  // of cloudcore's in AUTH
	EntrySysSeed   = "sys.nk"   // in SYS: cloudcore's, or people's
	EntryAdminSeed = "admin.nk" // of people's user in FROND
	// EntryIssuerSeed is the seed of the account that signs cloudcore's answers to the hub about gateways.
	EntryIssuerSeed = "issuer.nk"
)

// Server is one server of the hub.
type Server struct {
	Name string
	// Hosts are the addresses and DNS names by which gateways, cloudcores and its peers reach it.
	Hosts []string
}

// Spec describes the installation that the files are for.
type Spec struct {
	// Servers of the hub; number i has FolderHub(i).
	Servers []Server
	// Rotate issues all certificates again, with new keys. The CA and the keys of NATS users stay.
	Rotate bool
}

// Change is a file that Fill made.
type Change struct {
	File   string `json:"file"`
	Reason string `json:"reason"`
}

// ReasonMissing is the Reason of a missing file.
const ReasonMissing = "it was missing"

// Fill returns all required files, including the valid ones of have, and the list of those that it made. It changes neither of its
// arguments. An unreadable key in have is an error, because a new key in its place would lock others out.
func Fill(have Files, spec Spec, now time.Time) (Files, []Change, error) {
	f := &filler{have: have, files: maps.Clone(have), rotate: spec.Rotate, now: now}
	if f.files == nil {
		f.files = Files{}
	}
	signer, err := f.ensureAuthority()
	if err != nil {
		return nil, nil, err
	}
	bundle := have.bundleWith(signer.PEM)
	for i, server := range spec.Servers {
		s := pki.Subject{Name: server.Name, Hosts: normalizeHosts(server.Hosts)}
		if err := f.ensureCertificate(FolderHub(i), signer, s, bundle); err != nil {
			return nil, nil, err
		}
	}
	for folder, s := range map[string]pki.Subject{
		FolderCloudcore: {Name: "cloudcore", Hosts: []string{inspect.ServerName}}, // its server certificate for frond status
		FolderAdmin:     {Name: "admin"},
	} {
		if err := f.ensureCertificate(folder, signer, s, bundle); err != nil {
			return nil, nil, err
		}
	}
	for _, seed := range seedFiles() {
		if err := f.ensureSeed(seed.file, seed.kind); err != nil {
			return nil, nil, err
		}
	}
	slices.SortFunc(f.changes, func(a, b Change) int { return strings.Compare(a.File, b.File) })
	return f.files, f.changes, nil
}

type seedFile struct {
	file string
	kind nkeys.PrefixByte
}

func seedFiles() []seedFile {
	return []seedFile{
		{FolderCloudcore + "/" + EntryHubSeed, nkeys.PrefixByteUser},
		{FolderCloudcore + "/" + EntryAuthSeed, nkeys.PrefixByteUser},
		{FolderCloudcore + "/" + EntrySysSeed, nkeys.PrefixByteUser},
		{FolderCloudcore + "/" + EntryIssuerSeed, nkeys.PrefixByteAccount},
		{FolderAdmin + "/" + EntryAdminSeed, nkeys.PrefixByteUser},
		{FolderAdmin + "/" + EntrySysSeed, nkeys.PrefixByteUser},
	}
}

// PublicKey returns the public nkey of a seed file.
func (f Files) PublicKey(file string) (string, error) {
	pair, err := nkeys.FromSeed(bytes.TrimSpace(f[file]))
	if err != nil {
		return "", fmt.Errorf("%s holds no seed of an nkey: %w", file, err)
	}
	return pair.PublicKey()
}

// Bundle returns the certificates of all trusted CAs. The one that signs is the first.
func (f Files) Bundle() []byte { return f.bundleWith(f[FolderCA+"/"+EntryBundle]) }

func (f Files) bundleWith(current []byte) []byte {
	bundle := bytes.Clone(current)
	for _, entry := range []string{entryNext, entryPrevious} {
		if other := f[FolderCA+"/"+entry]; len(other) > 0 && !bytes.Equal(other, current) {
			bundle = append(bundle, other...)
		}
	}
	return bundle
}

// normalizeHosts sorts the names, removes repeats, and writes IP addresses in their canonical form.
func normalizeHosts(names []string) []string {
	var all []string
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			name = ip.String()
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

type filler struct {
	have, files Files
	changes     []Change
	rotate      bool
	now         time.Time
}

func (f *filler) setFile(file string, data []byte, reason string) {
	f.files[file] = data
	f.changes = append(f.changes, Change{File: file, Reason: reason})
}

// ensureAuthority reads the CA that signs, or makes it.
func (f *filler) ensureAuthority() (pki.Authority, error) {
	certFile, keyFile := FolderCA+"/"+EntryBundle, FolderCA+"/"+EntryAuthorityKey
	key, made, err := f.ensureKey(keyFile, false)
	switch {
	case err != nil:
		return pki.Authority{}, err
	case made && len(f.have[certFile]) > 0:
		return pki.Authority{}, fmt.Errorf("%s is there, but not its key %s: nothing can be signed without it. Put it back from a backup", certFile, keyFile)
	case len(f.have[certFile]) == 0:
		cert, err := pki.Sign(key, f.now)
		if err != nil {
			return pki.Authority{}, err
		}
		f.setFile(certFile, cert, ReasonMissing)
	}
	a, err := pki.Read(certFile, f.files[certFile], f.files[keyFile])
	a.CrossSigned = f.have[FolderCA+"/"+entryCrossSigned]
	return a, err
}

// ensureKey reads a private key, or makes it if it is missing or anew is set.
func (f *filler) ensureKey(file string, anew bool) (key crypto.Signer, made bool, err error) {
	if data := f.have[file]; len(data) > 0 && !anew {
		if key, err = mint.ParseKey(data); err != nil {
			return nil, false, fmt.Errorf("read %s: %w. Put it back from a backup, or delete the entry to have a new one made", file, err)
		}
		return key, false, nil
	}
	key, data, err := pki.NewKey()
	if err != nil {
		return nil, false, err
	}
	reason := ReasonMissing
	if anew {
		reason = "rotated"
	}
	f.setFile(file, data, reason)
	return key, true, nil
}

// ensureCertificate completes the certificate and key of a folder and the CA bundle beside them.
func (f *filler) ensureCertificate(folder string, signer pki.Authority, s pki.Subject, bundle []byte) error {
	certFile, keyFile, bundleFile := folder+"/"+EntryCert, folder+"/"+EntryKey, folder+"/"+EntryBundle
	key, _, err := f.ensureKey(keyFile, f.rotate)
	if err != nil {
		return err
	}
	reason := ReasonMissing
	switch chain := f.have[certFile]; {
	case f.rotate:
		reason = "rotated"
	case len(chain) > 0:
		reason = signer.RenewReason(chain, s, key.Public(), f.now)
	}
	if reason != "" {
		chain, err := signer.Issue(s, key.Public(), f.now)
		if err != nil {
			return err
		}
		f.setFile(certFile, chain, reason)
	}
	switch old := f.have[bundleFile]; {
	case len(old) == 0:
		f.setFile(bundleFile, bundle, ReasonMissing)
	case !bytes.Equal(old, bundle):
		f.setFile(bundleFile, bundle, "the authorities changed")
	}
	return nil
}

// ensureSeed completes the nkey of a user or an account.
func (f *filler) ensureSeed(file string, kind nkeys.PrefixByte) error {
	if data := bytes.TrimSpace(f.have[file]); len(data) > 0 {
		if prefix, _, err := nkeys.DecodeSeed(data); err != nil || prefix != kind {
			return fmt.Errorf("%s holds no seed of a NATS %s: put it back from a backup, or delete the entry to have a new one made", file, kind)
		}
		return nil
	}
	pair, err := nkeys.CreatePair(kind)
	if err != nil {
		return fmt.Errorf("make %s: %w", file, err)
	}
	data, err := pair.Seed()
	if err != nil {
		return fmt.Errorf("make %s: %w", file, err)
	}
	f.setFile(file, data, ReasonMissing)
	return nil
}

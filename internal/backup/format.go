package backup

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/identity"
)

// APIVersion is the version of the format that this package writes, the only one that it reads.
const APIVersion = "backup.frond.io/v1"

// backupKind distinguishes a backup from other JSON.
const backupKind = "Backup"

// Header identifies the backup and its cluster.
type Header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Created is the time at which the first object was read.
	Created time.Time `json:"created"`
	// ClusterUID is the UID of the namespace kube-system, which identifies the cluster.
	ClusterUID string `json:"clusterUID"`
	// FrondVersion is the version of the program that wrote it.
	FrondVersion string `json:"frondVersion"`
	// CAHash is the hash of the CA in it, as gateways know it.
	CAHash string `json:"caHash"`
}

// Content is the content of a backup. The objects have no metadata that the apiserver writes.
type Content struct {
	Header
	Secrets    []corev1.Secret
	ConfigMaps []corev1.ConfigMap
	Identities []identity.NodeIdentity
}

// countObjects counts the objects in a backup.
func (c Content) countObjects() int { return len(c.Secrets) + len(c.ConfigMaps) + len(c.Identities) }

// backupRecord is one line after the header; exactly one field is set.
type backupRecord struct {
	Secret    *corev1.Secret         `json:"secret,omitempty"`
	ConfigMap *corev1.ConfigMap      `json:"configMap,omitempty"`
	Identity  *identity.NodeIdentity `json:"identity,omitempty"`
	// End is the last line: the number of objects before it.
	End *int `json:"end,omitempty"`
}

const (
	// maxPlainBytes bounds the decompressed size: 100,000 identities are some 70 MB.
	maxPlainBytes = 1 << 30
	// maxRecordBytes bounds one line: etcd accepts objects of 1.5 MiB.
	maxRecordBytes = 4 << 20
)

// ErrFormat reports that a decrypted file is not a backup that this version can read.
var ErrFormat = errors.New("not a backup that this frond can read")

// Write encrypts a backup into w: JSON lines, compressed.
func Write(w io.Writer, c Content, key Key) error {
	encrypted, err := age.Encrypt(w, key.recipients...)
	if err != nil {
		return fmt.Errorf("encrypt: %w", err)
	}
	compressed := gzip.NewWriter(encrypted)
	lines := json.NewEncoder(compressed)
	c.APIVersion, c.Kind = APIVersion, backupKind
	if err := lines.Encode(c.Header); err != nil {
		return fmt.Errorf("write the header: %w", err)
	}
	write := func(r backupRecord) {
		if err == nil {
			err = lines.Encode(r)
		}
	}
	for i := range c.Secrets {
		write(backupRecord{Secret: &c.Secrets[i]})
	}
	for i := range c.ConfigMaps {
		write(backupRecord{ConfigMap: &c.ConfigMaps[i]})
	}
	for i := range c.Identities {
		write(backupRecord{Identity: &c.Identities[i]})
	}
	count := c.countObjects()
	write(backupRecord{End: &count})
	if err := errors.Join(err, compressed.Close(), encrypted.Close()); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}

// Read decrypts a backup. It returns an error if the backup was truncated, changed, or written by a newer version.
func Read(r io.Reader, key Key) (Content, error) {
	plain, err := age.Decrypt(r, key.identities...)
	if err != nil {
		if _, wrong := errors.AsType[*age.NoIdentityMatchError](err); wrong {
			return Content{}, errors.New("the passphrase or the identity does not open this backup")
		}
		return Content{}, fmt.Errorf("decrypt the backup: %w", err)
	}
	expanded, err := gzip.NewReader(plain)
	if err != nil {
		return Content{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	limited := &io.LimitedReader{R: expanded, N: maxPlainBytes}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxRecordBytes)
	c, err := readLines(lines)
	if err != nil && limited.N <= 0 {
		err = fmt.Errorf("%w: it is larger than %d bytes", ErrFormat, maxPlainBytes)
	}
	return c, err
}

func readLines(lines *bufio.Scanner) (c Content, err error) {
	if !lines.Scan() {
		return c, errors.Join(ErrFormat, lines.Err())
	}
	if err := json.Unmarshal(lines.Bytes(), &c.Header); err != nil || c.Kind != backupKind {
		return c, fmt.Errorf("%w: its first line is no header", ErrFormat)
	}
	if c.APIVersion != APIVersion {
		return c, fmt.Errorf("%w: it is %s, written by frond %s, and this one reads %s", ErrFormat, c.APIVersion, c.FrondVersion, APIVersion)
	}
	for lines.Scan() {
		var r backupRecord
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return c, fmt.Errorf("%w: object %d: %w", ErrFormat, c.countObjects()+1, err)
		}
		switch {
		case r.Secret != nil:
			c.Secrets = append(c.Secrets, *r.Secret)
		case r.ConfigMap != nil:
			c.ConfigMaps = append(c.ConfigMaps, *r.ConfigMap)
		case r.Identity != nil:
			c.Identities = append(c.Identities, *r.Identity)
		case r.End != nil && *r.End == c.countObjects():
			return c, checkTrailing(lines)
		default:
			return c, fmt.Errorf("%w: object %d is of no kind that a backup has", ErrFormat, c.countObjects()+1)
		}
	}
	return c, fmt.Errorf("%w: it ends after %d objects: %w", ErrFormat, c.countObjects(), errors.Join(io.ErrUnexpectedEOF, lines.Err()))
}

// checkTrailing reads to the end, which has the checksums of both layers.
func checkTrailing(lines *bufio.Scanner) error {
	if lines.Scan() {
		return fmt.Errorf("%w: it goes on after its end", ErrFormat)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return nil
}

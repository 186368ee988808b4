package backup_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/backup"
)

// newKeys returns a pair of age keys: writing backups needs only the first.
func newKeys(t *testing.T) (encrypt, decrypt backup.Key, pair *age.X25519Identity) {
	t.Helper()
	pair, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if encrypt, err = backup.NewRecipients([]string{pair.Recipient().String()}); err != nil {
		t.Fatal(err)
	}
	if decrypt, err = backup.NewIdentities(strings.NewReader(pair.String() + "\n")); err != nil {
		t.Fatal(err)
	}
	return encrypt, decrypt, pair
}

func sampleContent() backup.Content {
	return backup.Content{
		Header:     backup.Header{APIVersion: backup.APIVersion, Kind: "Backup", Created: time.Unix(1000, 0).UTC(), ClusterUID: "uid", FrondVersion: "v1", CAHash: "sha256:1"},
		Secrets:    []corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Name: "frond-ca"}, Data: map[string][]byte{"ca.key": []byte("very secret")}}},
		ConfigMaps: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "frond"}, Data: map[string]string{"cells": "4"}}},
		Identities: []identity.NodeIdentity{{ObjectMeta: metav1.ObjectMeta{Name: "gw-1"}, Spec: identity.NodeIdentitySpec{Key: "UA", Issued: metav1.Unix(900, 0)}}},
	}
}

func TestBackup_ReadsWhatWasWritten(t *testing.T) {
	encrypt, decrypt, _ := newKeys(t)
	var file bytes.Buffer
	if err := backup.Write(&file, sampleContent(), encrypt); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(file.Bytes(), []byte("secret")) || bytes.Contains(file.Bytes(), []byte("frond")) {
		t.Error("the file is not encrypted")
	}
	got, err := backup.Read(bytes.NewReader(file.Bytes()), decrypt)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sampleContent(), got); diff != "" {
		t.Errorf("what comes back (-written +read):\n%s", diff)
	}
	_, stranger, _ := newKeys(t)
	if _, err := backup.Read(bytes.NewReader(file.Bytes()), stranger); err == nil || !strings.Contains(err.Error(), "does not open") {
		t.Errorf("another key: %v", err)
	}
	for _, at := range []int{file.Len() / 2, file.Len() - 1} {
		if _, err := backup.Read(bytes.NewReader(file.Bytes()[:at]), decrypt); err == nil {
			t.Errorf("cut short after %d of %d bytes, it is taken for whole", at, file.Len())
		}
	}
	torn := bytes.Clone(file.Bytes())
	torn[len(torn)-3] ^= 1
	if _, err := backup.Read(bytes.NewReader(torn), decrypt); err == nil {
		t.Error("a changed bit is not noticed")
	}
}

func TestBackup_Passphrase(t *testing.T) {
	if _, err := backup.NewPassphrase("too short"); err == nil || !strings.Contains(err.Error(), "12 or more") {
		t.Errorf("a short passphrase: %v", err)
	}
	key, err := backup.NewQuickPassphrase("correct horse battery")
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := backup.Write(&file, sampleContent(), key); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Read(bytes.NewReader(file.Bytes()), key); err != nil {
		t.Error(err)
	}
	wrong, err := backup.NewQuickPassphrase("incorrect horse battery")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Read(bytes.NewReader(file.Bytes()), wrong); err == nil || !strings.Contains(err.Error(), "does not open") {
		t.Errorf("another passphrase: %v", err)
	}
}

// TestBackup_RefusesOtherContent encrypts content that is no backup: any holder of a public key can do that.
func TestBackup_RefusesOtherContent(t *testing.T) {
	_, decrypt, pair := newKeys(t)
	header := `{"apiVersion":"backup.frond.io/v1","kind":"Backup"}` + "\n"
	for name, content := range map[string]string{
		"nothing":             "",
		"no JSON":             "hello\n",
		"another kind":        `{"apiVersion":"backup.frond.io/v1","kind":"List"}` + "\n",
		"a later version":     `{"apiVersion":"backup.frond.io/v2","kind":"Backup"}` + "\n" + `{"end":0}` + "\n",
		"no end":              header,
		"a wrong count":       header + `{"end":1}` + "\n",
		"an unknown record":   header + `{"pod":{}}` + "\n" + `{"end":0}` + "\n",
		"more after the end":  header + `{"end":0}` + "\n" + `{"end":0}` + "\n",
		"a record too large":  header + `{"secret":{"metadata":{"name":"` + strings.Repeat("a", 5<<20) + `"}}}` + "\n" + `{"end":1}` + "\n",
		"no line ends at all": strings.Repeat("a", 5<<20),
	} {
		var file bytes.Buffer
		encrypted, err := age.Encrypt(&file, pair.Recipient())
		if err != nil {
			t.Fatal(err)
		}
		compressed := gzip.NewWriter(encrypted)
		_, err = io.WriteString(compressed, content)
		if err := errors.Join(err, compressed.Close(), encrypted.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := backup.Read(&file, decrypt); !errors.Is(err, backup.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNewRecipients_RefusesOtherText(t *testing.T) {
	if _, err := backup.NewRecipients([]string{"age1nonsense"}); err == nil {
		t.Error("a recipient that is none is taken")
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("AGE-SECRET-KEY-1NEARLY"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.NewIdentities(strings.NewReader("AGE-SECRET-KEY-1NEARLY")); err == nil || strings.Contains(err.Error(), "NEARLY") {
		t.Errorf("an identity that is none: %v", err)
	}
}

func TestMergeIdentity(t *testing.T) {
	at := func(hour int64) metav1.Time { return metav1.Unix(hour*3600, 0) }
	when := func(hour int64) *metav1.Time { moment := at(hour); return &moment }
	type spec = identity.NodeIdentitySpec
	for name, tt := range map[string]struct{ have, saved, want spec }{
		"the same": {
			have: spec{Key: "A", Issued: at(1)}, saved: spec{Key: "A", Issued: at(1)}, want: spec{Key: "A", Issued: at(1)},
		},
		"renewed since the backup": {
			have: spec{Key: "B", Previous: "A", Issued: at(2)}, saved: spec{Key: "A", Issued: at(1)}, want: spec{Key: "B", Previous: "A", Issued: at(2)},
		},
		"the cluster is older than the backup": {
			have: spec{Key: "A", Issued: at(1)}, saved: spec{Key: "B", Previous: "A", Issued: at(2)}, want: spec{Key: "B", Previous: "A", Issued: at(2)},
		},
		"revoked since the backup": {
			have: spec{Issued: at(1), Revoked: []string{"A"}, RevokedAt: when(3)}, saved: spec{Key: "A", Issued: at(1)},
			want: spec{Issued: at(1), Revoked: []string{"A"}, RevokedAt: when(3)},
		},
		"renewed, backed up, and revoked in an older copy's place": {
			have: spec{Issued: at(1), Revoked: []string{"A"}, RevokedAt: when(5)}, saved: spec{Key: "B", Previous: "A", Issued: at(2)},
			want: spec{Issued: at(1), Revoked: []string{"A", "B"}, RevokedAt: when(5)},
		},
		"revoked before the backup, and the cluster forgot": {
			have: spec{Key: "A", Issued: at(1)}, saved: spec{Issued: at(1), Revoked: []string{"A"}, RevokedAt: when(2)},
			want: spec{Issued: at(1), Revoked: []string{"A"}, RevokedAt: when(2)},
		},
		"joined anew after the revocation that the backup has": {
			have: spec{Key: "B", Issued: at(4), Revoked: []string{"A"}}, saved: spec{Issued: at(1), Revoked: []string{"A"}, RevokedAt: when(2)},
			want: spec{Key: "B", Issued: at(4), Revoked: []string{"A"}},
		},
		"joined anew after the revocation, and the cluster is older": {
			have: spec{Issued: at(1), Revoked: []string{"A"}, RevokedAt: when(2)}, saved: spec{Key: "B", Issued: at(4), Revoked: []string{"A"}},
			want: spec{Key: "B", Issued: at(4), Revoked: []string{"A"}},
		},
		"a key that only the backup knows as revoked": {
			have: spec{Key: "C", Previous: "A", Issued: at(4)}, saved: spec{Key: "B", Issued: at(3), Revoked: []string{"A"}},
			want: spec{Key: "C", Issued: at(4), Revoked: []string{"A"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := backup.MergeIdentity(tt.have, tt.saved)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("merged (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(got, backup.MergeIdentity(got, tt.saved)); diff != "" {
				t.Errorf("a second time changes it (-first +second):\n%s", diff)
			}
		})
	}
}

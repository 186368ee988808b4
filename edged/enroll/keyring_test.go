package enroll

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/edged/identitydir"
)

// A key that cannot be written is not used: a gateway that enrolled with it would be locked out by its next start.
func TestKeyring_UnwrittenKeyIsNone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "identity")
	renewer, err := New(Config{Node: "edge-1", Dir: dir}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	k := renewer.keys
	if err := os.Remove(dir); err != nil { // like a full disk: nothing can be written
		t.Fatal(err)
	}
	for range 2 {
		if err := k.makeKey(); err == nil || k.folder.Current != nil {
			t.Errorf("the first key: %v, %v", k.folder.Current, err)
		}
		if public, err := k.makeNextKey(); err == nil || public != "" || k.folder.Next != nil {
			t.Errorf("the next key: %q, %v", public, err)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if public, err := k.makeNextKey(); err != nil || public == "" {
		t.Errorf("with room again: %q, %v", public, err)
	}
}

// The hubs of the configuration stay in the list when the cloud has named others, each once.
func TestHubTrust_KeepsConfiguredHubs(t *testing.T) {
	trust := &hubTrust{hubs: []string{"tls://a:1", "tls://b:1"}, keys: &keyring{folder: &identitydir.Folder{}}}
	for _, tt := range []struct{ told, want []string }{
		{nil, []string{"tls://a:1", "tls://b:1"}},
		{[]string{"tls://b:1", "tls://c:1"}, []string{"tls://b:1", "tls://c:1", "tls://a:1"}},
	} {
		trust.keys.folder.Record.HubURLs = tt.told
		if diff := cmp.Diff(tt.want, trust.allHubs()); diff != "" {
			t.Errorf("told %v (-want +got):\n%s", tt.told, diff)
		}
	}
}

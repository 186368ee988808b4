package e2e_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster/daemon"
)

// jwtPrefix is the common prefix of the cluster's tokens: {"alg":"RS256","kid":"
const jwtPrefix = "eyJhbGciOiJSUzI1NiIsImtpZCI6I"

// TestSealedStore_NoSecretOnDisk gives a gateway a Secret, changes it, and stops the gateway's agent gracefully, so that it has written
// everything. No file of the agent then contains the Secret, its older content or a token; `frond dev store` showed it.
func TestSealedStore_NoSecretOnDisk(t *testing.T) {
	first, second := uuid.NewString(), uuid.NewString()
	manifest := func(text string) string {
		return `
apiVersion: v1
kind: Secret
metadata: {name: sealed, namespace: default}
stringData: {word: ` + text + `}
`
	}
	applyManifest(t, manifest(first)+`---
apiVersion: v1
kind: Pod
metadata: {name: sealed, namespace: default, labels: {app: sealed}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-1}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/frond/tools:dev
    imagePullPolicy: Never
    command: [sleep, "36000"]
    volumeMounts: [{name: word, mountPath: /word}]
  volumes: [{name: word, secret: {secretName: sealed}}]
`)
	awaitRunning(t, "app=sealed", 1)
	if _, err := shared.Kubectl(t.Context(), manifest(second), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	key := wire.Key{Resource: "secrets", Namespace: "default", Name: "sealed"}
	eventually(t, "the gateway has the changed Secret", func(ctx context.Context) string {
		object, err := shared.StoreGet(ctx, "edge-1", key)
		switch {
		case err != nil:
			return err.Error()
		case !bytes.Contains(object, []byte(base64.StdEncoding.EncodeToString([]byte(second)))):
			return string(object)
		}
		return ""
	})
	agent, err := daemon.Identify(shared.PID("edge-1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.Start(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the agent ends", func(context.Context) string {
		if agent.Alive() {
			return "it runs"
		}
		return ""
	})
	dir := filepath.Join(shared.Dir(), "edge-1", "data")
	read := 0
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if path == filepath.Join(dir, "kubelet", "pods") {
			return filepath.SkipDir // pods' mounts: in memory, except with the hollow runtime
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read++
		for _, text := range []string{first, second, base64.StdEncoding.EncodeToString([]byte(first)), base64.StdEncoding.EncodeToString([]byte(second)), jwtPrefix} {
			if containsSecret(t, data, text) {
				t.Errorf("%s holds %q", path, text)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"store.copy", "identity/store.key"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Errorf("the agent has not written all: %v", err)
		}
	}
	t.Logf("%d files read", read)
}

// containsSecret searches a file for a text: as it is, in base64 at any of its three offsets, and in zstd-compressed parts.
func containsSecret(t *testing.T, data []byte, text string) bool {
	t.Helper()
	if containsEncoded(data, text) {
		return true
	}
	magic := []byte{0x28, 0xb5, 0x2f, 0xfd}
	for rest := data; ; rest = rest[1:] {
		i := bytes.Index(rest, magic)
		if i < 0 {
			return false
		}
		rest = rest[i:]
		z, err := zstd.NewReader(bytes.NewReader(rest), zstd.WithDecoderConcurrency(1), zstd.IgnoreChecksum(true))
		if err != nil {
			t.Fatal(err)
		}
		plain, _ := io.ReadAll(z) // the part before anything that is not zstd
		z.Close()
		if containsEncoded(plain, text) {
			return true
		}
	}
}

func containsEncoded(data []byte, text string) bool {
	if bytes.Contains(data, []byte(text)) {
		return true
	}
	for offset := range 3 {
		encoded := base64.StdEncoding.EncodeToString(append(make([]byte, offset), text...))
		if bytes.Contains(data, []byte(encoded[4:len(encoded)-4])) { // without the digits that depend on neighbouring bytes
			return true
		}
	}
	return false
}

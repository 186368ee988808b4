package store_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/leaf/store/seal"
	"github.com/frond-edge/frond/test/faultfs"
)

func secretKey(name string) wire.Key {
	return wire.Key{Resource: "secrets", Namespace: "default", Name: name}
}

func isSecret(k wire.Key) bool { return k.Resource == "secrets" }

// sealingConfig configures a store with a mark, a copy, and a key in its folder.
func sealingConfig(t testing.TB, dir string) store.Config {
	t.Helper()
	ring, err := seal.Load(filepath.Join(dir, "store.key"), zaptest.NewLogger(t))
	must(t, err)
	cfg := lastGoodConfig(dir)
	cfg.Sealer, cfg.IsSecret = ring, isSecret
	return cfg
}

func newRing(t testing.TB, seeds ...byte) *seal.Ring {
	t.Helper()
	var keys [][]byte
	for _, seed := range seeds {
		keys = append(keys, bytes.Repeat([]byte{seed}, seal.KeySize))
	}
	r, err := seal.New(keys...)
	must(t, err)
	return r
}

// secretMessages returns n Secrets of the hub, after one ConfigMap.
func secretMessages(n uint64) []wire.Message {
	all := []wire.Message{applyMessage(1, "open", "u0", "for-everybody")}
	for i := uint64(1); i <= n; i++ {
		m := applyMessage(i+1, "", fmt.Sprint("u", i), fmt.Sprintf("hidden-%03d", i))
		m.Key = secretKey(fmt.Sprintf("s%03d", i))
		all = append(all, m)
	}
	return all
}

// wantSecrets checks that the store holds the Secrets of all, and that it is complete.
func (n *node) wantSecrets(all []wire.Message) {
	n.t.Helper()
	n.wantCursor("s1", uint64(len(all)))
	for _, m := range all {
		if e, err := n.Get(m.Key); err != nil || string(e.Object) != string(m.Object) || !e.LastGood.IsZero() {
			n.t.Errorf("%s: %s, %v; want %s", m.Key.Human(), e.Object, err, m.Object)
		}
	}
}

// filesContaining lists the files that contain a text, plain or compressed.
func filesContaining(t testing.TB, dir, text string) (files []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.HasPrefix(data, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
			z, err := zstd.NewReader(bytes.NewReader(data))
			must(t, err)
			defer z.Close()
			var out bytes.Buffer
			_, err = out.ReadFrom(z)
			must(t, err)
			data = out.Bytes()
			// The copy's objects are base64 in JSON.
			for line := range bytes.Lines(data) {
				var record struct{ Object []byte }
				must(t, json.Unmarshal(line, &record))
				data = append(data, record.Object...)
			}
		}
		if bytes.Contains(data, []byte(text)) {
			files = append(files, filepath.Base(path))
		}
		return nil
	}))
	return files
}

// After any operation on Secrets no file of the store contains one as plain text, and everything else stays readable.
func TestSealing_NoPlainSecretOnDisk(t *testing.T) {
	dir := t.TempDir()
	n := openNode(t, dir, sealingConfig(t, dir))
	all := secretMessages(40) // more than maxPipelined: an atomic batch
	must(t, n.Replace(t.Context(), all, "s1", 41))
	_, err := n.Put(t.Context(), secretKey("own"), objectJSON("own", "hidden-own"), nil)
	must(t, err)
	_, err = n.Put(t.Context(), secretKey("s001"), objectJSON("u1", "hidden-changed"), nil)
	must(t, err)
	_, err = n.Delete(t.Context(), secretKey("s002"), "u2", nil)
	must(t, err)
	must(t, n.SaveLastGood(t.Context()))
	check := func(when string) {
		t.Helper()
		if files := filesContaining(t, dir, "hidden-"); len(files) > 0 {
			t.Errorf("%s: a Secret is in %v", when, files)
		}
		if files := filesContaining(t, dir, "for-everybody"); len(files) < 2 {
			t.Errorf("%s: a ConfigMap is in %v only", when, files)
		}
	}
	check("open")
	n = n.restart(sealingConfig(t, dir), func() { check("closed") })
	n.wantCursor("s1", 41)
	for name, data := range map[string]string{"own": "hidden-own", "s001": "hidden-changed", "s040": "hidden-040"} {
		if e, err := n.Get(secretKey(name)); err != nil || !bytes.Contains(e.Object, []byte(data)) {
			t.Errorf("%s: %s, %v", name, e.Object, err)
		}
	}
	check("again")
}

// The `nats` tool shows that a record exists and which key sealed it. Its checksum does not confirm a guess of the Secret:
// the same Secret, written twice, has two checksums.
func TestSealing_HidesContentOnly(t *testing.T) {
	dir := t.TempDir()
	n := openNode(t, dir, sealingConfig(t, dir))
	read := func() (header nats.Header, data []byte) {
		_, err := n.Put(t.Context(), secretKey("a"), objectJSON("u", "hidden"), nil)
		must(t, err)
		s, err := n.js.Stream(t.Context(), "KV_store")
		must(t, err)
		m, err := s.GetLastMsgForSubject(t.Context(), "$KV.store.object.core.secrets.default.a")
		must(t, err)
		return m.Header, m.Data
	}
	header, data := read()
	var envelope struct{ Sealed, Key string }
	must(t, json.Unmarshal(data, &envelope))
	if header.Get("Frond-Sealed") != "yes" || header.Get("Frond-Uid") != "u" || envelope.Sealed != "xchacha20poly1305" || envelope.Key == "" {
		t.Errorf("header %v, payload %s", header, data)
	}
	again, _ := read()
	if sum := header.Get("Frond-Checksum"); sum == again.Get("Frond-Checksum") {
		t.Errorf("the checksum is %s each time", sum)
	}
}

// Without its key the store holds everything except the Secrets, reports that they are missing, and gets them again. They
// never count as deleted, and a copy that was sealed with the lost key is not used.
func TestSealing_LostKey(t *testing.T) {
	for name, other := range map[string]func(*testing.T, *store.Config){
		"another key":  func(_ *testing.T, c *store.Config) { c.Sealer = newRing(t, 9) },
		"a downgrade":  func(_ *testing.T, c *store.Config) { c.Sealer = nil },
		"without copy": func(_ *testing.T, c *store.Config) { c.Sealer, c.LastGoodFile = newRing(t, 9), "" },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			n := openNode(t, dir, sealingConfig(t, dir))
			all, epoch := secretMessages(20), n.Cursor().StoreEpoch
			must(t, n.Replace(t.Context(), all, "s1", 21))
			must(t, n.SaveLastGood(t.Context()))
			cfg := sealingConfig(t, dir)
			other(t, &cfg)
			n = n.restart(cfg, nil)
			if c := n.Cursor(); c != (wire.Cursor{StoreEpoch: epoch}) {
				t.Errorf("cursor %+v without the key, want only epoch %s", c, epoch)
			}
			n.wantData("open", "for-everybody")
			if list, _ := n.List("", "secrets", ""); len(list) != 0 || len(n.DeletedHere()) != 0 {
				t.Errorf("%d secrets, %d deleted", len(list), len(n.DeletedHere()))
			}
			must(t, n.Replace(t.Context(), all, "s1", 21))
			n = n.restart(cfg, nil)
			n.wantSecrets(all)
		})
	}
}

// An attacker who can write to the disk cannot give one Secret the content of another.
func TestSealing_SecretsCannotBeSwapped(t *testing.T) {
	dir := t.TempDir()
	n := openNode(t, dir, sealingConfig(t, dir))
	all := secretMessages(2)
	all[2].UID, all[2].Object = all[1].UID, all[1].Object
	must(t, n.Replace(t.Context(), all, "s1", 3))
	s, err := n.js.Stream(t.Context(), "KV_store")
	must(t, err)
	const prefix = "$KV.store.object.core.secrets.default."
	m, err := s.GetLastMsgForSubject(t.Context(), prefix+"s002")
	must(t, err)
	header := nats.Header{}
	for k, v := range m.Header {
		if strings.HasPrefix(k, "Frond-") {
			header[k] = v
		}
	}
	_, err = n.js.PublishMsg(t.Context(), &nats.Msg{Subject: prefix + "s001", Data: m.Data, Header: header})
	must(t, err)
	n.openStore(sealingConfig(t, dir))
	if e, err := n.Get(secretKey("s001")); err == nil {
		t.Errorf("s001 is %s", e.Object)
	}
}

// A Secret that another writer wrote as plain text is kept for inspection, and sealed too.
func TestQuarantine_IsSealed(t *testing.T) {
	dir := t.TempDir()
	n := openNode(t, dir, sealingConfig(t, dir))
	must(t, n.Replace(t.Context(), secretMessages(1), "s1", 2))
	_, err := n.js.Publish(t.Context(), "$KV.store.object.core.secrets.default.s001", []byte("foreign"))
	must(t, err)
	n.openStore(sealingConfig(t, dir))
	kv, err := n.js.KeyValue(t.Context(), "store")
	must(t, err)
	keys, err := kv.ListKeysFiltered(t.Context(), "quarantine.>")
	must(t, err)
	count := 0
	for k := range keys.Keys() {
		e, err := kv.Get(t.Context(), k)
		must(t, err)
		if count++; bytes.Contains(e.Value(), []byte("foreign")) || !json.Valid(e.Value()) {
			t.Errorf("%s: %s", k, e.Value())
		}
	}
	if count != 1 {
		t.Errorf("%d records in quarantine, want 1", count)
	}
}

// newPlainStore creates a store of an older version: Secrets as plain text, one of them deleted long ago.
func newPlainStore(t *testing.T, dir string, count uint64) []wire.Message {
	t.Helper()
	n := openNode(t, dir, lastGoodConfig(dir))
	all := secretMessages(count)
	_, err := n.Put(t.Context(), secretKey("gone"), objectJSON("", "hidden-of-old"), nil)
	must(t, err)
	_, err = n.Delete(t.Context(), secretKey("gone"), "", nil)
	must(t, err)
	must(t, n.Replace(t.Context(), all, "s1", uint64(len(all))))
	must(t, n.SaveLastGood(t.Context()))
	n.js.Conn().Close()
	n.leaf.Stop()
	for _, text := range []string{"hidden-001", "hidden-of-old"} {
		if len(filesContaining(t, dir, text)) == 0 {
			t.Fatalf("%s is not on the disk, so nothing is to be proved", text)
		}
	}
	return all
}

// The first Open by a version that seals leaves no plain text, not even of replaced or deleted records.
func TestReseal_PlainStore(t *testing.T) {
	dir := t.TempDir()
	all := newPlainStore(t, dir, 40)
	n := openNode(t, dir, sealingConfig(t, dir))
	n.wantSecrets(all)
	for range 2 {
		revision := n.Revision()
		n = n.restart(sealingConfig(t, dir), func() {
			if files := filesContaining(t, dir, "hidden-"); len(files) > 0 {
				t.Errorf("a Secret is in %v", files)
			}
		})
		n.wantSecrets(all)
		if n.Revision() != revision {
			t.Errorf("revision %d, then %d: created again again", revision, n.Revision())
		}
	}
}

// With a new key before the old one all records are sealed with the new one, and the old one may be removed.
func TestReseal_NewKey(t *testing.T) {
	dir := t.TempDir()
	cfg := lastGoodConfig(dir)
	cfg.IsSecret = isSecret
	all := secretMessages(20)
	for i, r := range []*seal.Ring{newRing(t, 1), newRing(t, 2, 1), newRing(t, 2)} {
		cfg.Sealer = r
		n := openNode(t, dir, cfg)
		if i == 0 {
			must(t, n.Replace(t.Context(), all, "s1", 21))
			must(t, n.SaveLastGood(t.Context()))
		}
		n.wantSecrets(all)
		n.js.Conn().Close()
		n.leaf.Stop()
	}
}

// halfOpenedImages is half of the most images that TestReseal_PowerCut opens: each takes 0.1 s.
const halfOpenedImages = 16

// A power cut at any moment of the first Open by a version that seals: all records are there, and sealed at the end.
func TestReseal_PowerCut(t *testing.T) {
	m := faultfs.Mount(t)
	all := newPlainStore(t, m.Dir, 300)
	var images []string
	var g errgroup.Group
	opened := make(chan struct{})
	g.Go(func() error {
		defer close(opened)
		openNode(t, m.Dir, sealingConfig(t, m.Dir)).wantSecrets(all)
		return nil
	})
	for seed, open := uint64(0), true; open; seed++ {
		if images = append(images, m.Image(seed*(seed%2))); len(images) > 2*halfOpenedImages {
			images = everySecond(t, images)
		}
		select {
		case <-opened:
			open = false
		default:
		}
	}
	must(t, g.Wait())
	t.Logf("%d cuts are opened", len(images))
	for i, image := range images {
		n := openNode(t, image, sealingConfig(t, image))
		n.wantSecrets(all)
		n.js.Conn().Close()
		n.leaf.Stop()
		if files := filesContaining(t, image, "hidden-"); len(files) > 0 {
			t.Errorf("a Secret is in %v", files)
		}
		if t.Failed() {
			t.Fatalf("cut %d of %d: image %s", i+1, len(images), image)
		}
		must(t, os.RemoveAll(image))
	}
}

// everySecond removes every other image, so that the rest covers the whole time.
func everySecond(t *testing.T, images []string) (left []string) {
	t.Helper()
	for i, image := range images {
		if i%2 == 0 {
			left = append(left, image)
			continue
		}
		must(t, os.RemoveAll(image))
	}
	return left
}

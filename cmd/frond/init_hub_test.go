package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// TestInit_FilesStartAHub starts a server with the files of its Secret, and connects with the other files.
func TestInit_FilesStartAHub(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init", "--hub-servers", "1", "--cells", "2", "--hub-url", "tls://hub.example.com:7422")
	dir := t.TempDir()
	for file, data := range i.secretFiles() {
		// As in the pod, but in this folder and on ports that are free.
		text := strings.ReplaceAll(string(data), "/etc/frond", dir)
		text = strings.ReplaceAll(text, `"/data"`, `"`+filepath.Join(dir, "data")+`"`)
		for _, port := range []string{"4222", "7422", "7443", "8222"} {
			text = strings.ReplaceAll(text, `"0.0.0.0:`+port+`"`, `"127.0.0.1:-1"`)
		}
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	options, err := server.ProcessConfigFile(filepath.Join(dir, "frond-hub-0", "nats-server.conf"))
	if err != nil {
		t.Fatal(err)
	}
	options.NoSigs = true
	hub, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	hub.Start()
	defer func() {
		hub.Shutdown()
		hub.WaitForShutdown()
	}()
	if !hub.ReadyForConnections(30 * time.Second) {
		t.Fatal("the hub does not start")
	}
	for seed, account := range map[string]string{
		"frond-cloudcore/hub.nk": "FROND", "frond-cloudcore/auth.nk": "AUTH", "frond-cloudcore/sys.nk": "SYS",
		"frond-admin/admin.nk": "FROND", "frond-admin/sys.nk": "SYS",
	} {
		key, err := nats.NkeyOptionFromSeed(filepath.Join(dir, seed))
		if err != nil {
			t.Fatal(err)
		}
		in := func(entry string) string { return filepath.Join(dir, filepath.Dir(seed), entry) }
		nc, err := nats.Connect(hub.ClientURL(), key, nats.RootCAs(in("ca.crt")), nats.ClientCert(in("tls.crt"), in("tls.key")))
		if err != nil {
			t.Errorf("%s does not get in: %v", seed, err)
			continue
		}
		nc.Close()
		if _, err := hub.LookupAccount(account); err != nil {
			t.Errorf("account %s: %v", account, err)
		}
	}
	if _, err := hub.LookupAccount("CELL-001"); err != nil {
		t.Errorf("its cells: %v", err)
	}
}

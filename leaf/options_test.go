package leaf_test

import (
	"encoding/json"
	"flag"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/leaf"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestServerOptions_Golden(t *testing.T) {
	opts, way, err := leaf.Options(leaf.Config{
		Node: "gw.17", Dir: "/var/lib/frond/leaf", Hub: []string{"tls://hub-1.example:7422", "wss://hub-2.example"},
		Credential: func([]byte) ([]byte, error) { return nil, nil },
		Proxy:      func(*url.URL) (*url.URL, error) { return url.Parse("http://me:secret@proxy.example:3128") },
	})
	if err != nil {
		t.Fatal(err)
	}
	o, r := opts.(*server.Options), way.(*server.RemoteLeafOpts)
	// Only Frond's settings: server.Options hides most of them from JSON.
	view := map[string]any{
		"server_name": o.ServerName, "dont_listen": o.DontListen, "no_sigs": o.NoSigs, "port": o.Port, "leaf_port": o.LeafNode.Port,
		"http_port": o.HTTPPort, "ping": o.PingInterval.String(), "max_pings": o.MaxPingsOut, "max_payload": o.MaxPayload,
		"jetstream": o.JetStream, "domain": o.JetStreamDomain, "max_memory": o.JetStreamMaxMemory, "max_store": o.JetStreamMaxStore,
		"ios": o.JetStreamConcurrentIOs, "store_dir": o.StoreDir, "sync_always": o.SyncAlways,
		"leaf_compression": o.LeafNode.Compression.Mode, "reconnect": o.LeafNode.ReconnectInterval.String(), "dial": o.LeafNode.DialTimeout.String(),
		"remote": map[string]any{
			"url": r.URLs[0].String(), "signs": r.SignatureCB != nil, "proxy": r.Proxy.URL, "proxy_user": r.Proxy.Username + ":" + r.Proxy.Password,
			"compression": r.Compression.Mode, "ignore_discovered": r.IgnoreDiscoveredServers,
			"dial": r.DialTimeout.String(), "first_info": r.FirstInfoTimeout.String(), "tls_timeout": r.TLSTimeout, "account": r.LocalAccount,
		},
	}
	text, err := json.MarshalIndent(view, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "options.golden.json", string(text)+"\n")
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestConfig_ValidateNamesFaults(t *testing.T) {
	ok := leaf.Config{Node: "n", Dir: "d"}
	for name, tt := range map[string]struct {
		change func(*leaf.Config)
		want   string // "" for none
	}{
		"no link":            {func(*leaf.Config) {}, ""},
		"loopback":           {func(c *leaf.Config) { c.Hub = []string{"nats-leaf://127.0.0.1:1"} }, ""},
		"no node":            {func(c *leaf.Config) { c.Node = "" }, "node: is empty"},
		"no dir":             {func(c *leaf.Config) { c.Dir = "" }, "dir: is empty"},
		"tls without files":  {func(c *leaf.Config) { c.Hub = []string{"tls://hub:7422"} }, "needs caFile"},
		"plain to elsewhere": {func(c *leaf.Config) { c.Hub = []string{"nats-leaf://10.0.0.1:7422"} }, "only tls"},
		"other scheme":       {func(c *leaf.Config) { c.Hub = []string{"http://hub"} }, "scheme"},
		"secret not shown":   {func(c *leaf.Config) { c.Hub = []string{"tls://u:pw@ho st"} }, "not a URL"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := ok
			tt.change(&cfg)
			_, err := leaf.New(cfg, zap.NewNop())
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

package render_test

import (
	"crypto/tls"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/render"
	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/streams/subject"
)

var updateGolden = flag.Bool("update", false, "write the golden files")

// testPaths returns paths of programs that need not exist.
func testPaths() toolchain.Paths {
	return toolchain.Paths{
		Kube: "/tools/kube", NatsServer: "/tools/nats-server", Cloudcore: "/tools/cloudcore", Edgecore: "/tools/edgecore",
		Frond: "/tools/frond", Containerd: "/tools/containerd", Shim: "/tools/containerd-shim-runc-v2", Runc: "/tools/runc",
		Ctr: "/tools/ctr", CNIDir: "/tools/cni",
	}
}

func TestRender_MatchesGolden(t *testing.T) {
	for name, spec := range map[string]folder.Spec{
		"containerd": {Edges: 2, Cloudcores: 1, Hubs: 3, Runtime: folder.Containerd},
		"hollow":     {Edges: 1, Cloudcores: 2, Hubs: 1, Runtime: folder.Hollow},
	} {
		t.Run(name, func(t *testing.T) {
			dir, run := t.TempDir(), t.TempDir()
			if err := render.RenderFiles(dir, run, spec, testPaths()); err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, f := range []string{
				"hub-1/nats-server.conf", "wan.json", "env", "egress.yaml", "cloudcore-1/cloudcore.yaml", "edge-1/edgecore.yaml",
				"edge-1/containerd/config.toml", "nats/context.json",
			} {
				data, err := os.ReadFile(filepath.Join(dir, f))
				if os.IsNotExist(err) {
					continue
				} else if err != nil {
					t.Fatal(err)
				}
				_, _ = fmt.Fprintf(&b, "=== %s\n%s\n", f, data)
			}
			compareGolden(t, name+".txt", maskVolatile(b.String(), dir, run))
		})
	}
	t.Run("pod network", func(t *testing.T) {
		for name, has := range map[string]struct{ iptables, nft bool }{
			"cni.txt": {true, false}, "cni-nft.txt": {false, true}, "cni-no-iptables.txt": {false, false},
		} {
			data, err := render.PodNetworkTemplateText("/run/ipam", has.iptables, has.nft)
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, name, string(data))
		}
	})
	t.Run("flags", func(t *testing.T) {
		var b strings.Builder
		for _, program := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "metrics-server"} {
			_, _ = fmt.Fprintf(&b, "%s\n  %s\n", program, strings.Join(render.Flags("/dir")[program], "\n  "))
		}
		compareGolden(t, "flags.txt", b.String())
	})
}

var (
	nkeyPattern   = regexp.MustCompile(`\b[AU][A-Z2-7]{55}\b`)
	caHashPattern = regexp.MustCompile(`sha256:[0-9a-f]{64}`)
)

// maskVolatile replaces the values that differ between runs: folders, keys, and names derived from folders.
func maskVolatile(s, dir, run string) string {
	s = strings.ReplaceAll(s, folder.ID(dir), "CLUSTER")
	s = strings.ReplaceAll(strings.ReplaceAll(s, dir, "DIR"), run, "RUN")
	return caHashPattern.ReplaceAllString(nkeyPattern.ReplaceAllString(s, "NKEY"), "sha256:HASH")
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *updateGolden {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), -update accepts it:\n%s", path, diff)
	}
}

// TestRender_HubConfigIsClosed parses the file with the server's own parser.
func TestRender_HubConfigIsClosed(t *testing.T) {
	dir, run := t.TempDir(), t.TempDir()
	spec := folder.Spec{Edges: 2, Cloudcores: 1, Hubs: 3, Runtime: folder.Containerd}
	if err := render.RenderFiles(dir, run, spec, testPaths()); err != nil {
		t.Fatal(err)
	}
	o, err := server.ProcessConfigFile(filepath.Join(dir, "hub-2", "nats-server.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if o.NoAuthUser != "" || o.TLSMap || o.HTTPPort != 0 || o.Websocket.Port != 0 || o.MQTT.Port != 0 {
		t.Error("a listener or user nobody asked for")
	}
	for name, c := range map[string]*tls.Config{"client": o.TLSConfig, "cluster": o.Cluster.TLSConfig} {
		if c == nil || c.ClientAuth != tls.RequireAndVerifyClientCert || c.MinVersion != tls.VersionTLS13 {
			t.Errorf("the %s listener has no mutual TLS 1.3", name)
		}
	}
	if c := o.LeafNode.TLSConfig; c == nil || c.MinVersion != tls.VersionTLS13 || !o.LeafNode.TLSHandshakeFirst {
		t.Error("the leaf listener does not begin with TLS 1.3")
	}
	if o.AuthCallout == nil || len(o.AuthCallout.AuthUsers) != len(o.Nkeys) {
		t.Errorf("the callout: %+v", o.AuthCallout)
	}
	if !o.SyncAlways || o.MaxPayload != 8<<20 || o.JetStreamDomain != "hub" || o.LeafNode.Compression.Mode != server.CompressionOff {
		t.Errorf("sync always %t, max payload %d, domain %q, leaf compression %q", o.SyncAlways, o.MaxPayload, o.JetStreamDomain, o.LeafNode.Compression.Mode)
	}
	// The file has five users, for cloudcores and people. Gateways are admitted only by the auth callout.
	for _, u := range o.Nkeys {
		if _, leaf := u.AllowedConnectionTypes["LEAFNODE"]; leaf || len(u.AllowedConnectionTypes) == 0 && u.Account.Name != subject.SystemAccount {
			t.Errorf("a user of %s may come in as a leaf: %v", u.Account.Name, u.AllowedConnectionTypes)
		}
	}
	if len(o.Nkeys) != 5 {
		t.Errorf("%d users", len(o.Nkeys))
	}
}

// TestRender_NATSContextIsValid parses the file with the package of the nats CLI.
func TestRender_NATSContextIsValid(t *testing.T) {
	dir, run := t.TempDir(), t.TempDir()
	if err := render.RenderFiles(dir, run, folder.Spec{Edges: 1, Cloudcores: 1, Hubs: 3, Runtime: folder.Hollow}, testPaths()); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CONFIG_HOME", dir)
	c, err := natscontext.New("", true) // the selected one
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	if want := "nats://127.0.0.1:20003,nats://127.0.0.1:20006,nats://127.0.0.1:20009"; c.Name != "frond-dev" || c.ServerURL() != want {
		t.Errorf("context %q connects to %q, want %q", c.Name, c.ServerURL(), want)
	}
	if _, err := c.NATSOptions(); err != nil {
		t.Error(err)
	}
	if _, err := natscontext.NewFromFile(filepath.Join(dir, "nats", "context.json")); err != nil {
		t.Error(err)
	}
}

func TestRender_TwiceKeepsKeys(t *testing.T) {
	dir, run := t.TempDir(), t.TempDir()
	spec := folder.Spec{Edges: 1, Cloudcores: 1, Hubs: 1, Runtime: folder.Hollow}
	read := func() string {
		if err := render.RenderFiles(dir, run, spec, testPaths()); err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, f := range []string{"kubeconfig", "hub-1/nats-server.conf", "frond-system/frond-ca/ca.crt", "frond-system/frond-hub-0/tls.crt", "edge-1/edgecore.yaml"} {
			data, err := os.ReadFile(filepath.Join(dir, f))
			if err != nil {
				t.Fatal(err)
			}
			all.Write(data)
		}
		return all.String()
	}
	if diff := cmp.Diff(read(), read()); diff != "" {
		t.Errorf("files changed (-first +second):\n%s", diff)
	}
}

// A cluster with the file names of an earlier frond keeps its authority and its keys: gateways have joined it.
func TestRender_LegacyClusterKeepsKeys(t *testing.T) {
	dir, run := t.TempDir(), t.TempDir()
	spec := folder.Spec{Edges: 1, Cloudcores: 1, Hubs: 1, Runtime: folder.Hollow}
	renderKeys := func() (keys []string) {
		t.Helper()
		if err := render.RenderFiles(dir, run, spec, testPaths()); err != nil {
			t.Fatal(err)
		}
		for f, word := range map[string]*regexp.Regexp{"hub-1/nats-server.conf": nkeyPattern, "edge-1/edgecore.yaml": caHashPattern} {
			data, err := os.ReadFile(filepath.Join(dir, f))
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, word.FindAllString(string(data), -1)...)
		}
		slices.Sort(keys)
		return slices.Compact(keys)
	}
	before := renderKeys()
	if len(before) != 7 { // an account, five users, an authority
		t.Fatalf("%d keys", len(before))
	}
	for file, name := range render.LegacyFileNames() {
		data, err := os.ReadFile(filepath.Join(dir, "frond-system", file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "nats", name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(dir, "frond-system")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, renderKeys()); diff != "" {
		t.Errorf("other keys (-before +after):\n%s", diff)
	}
}

package join

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/edged/enroll"
	"github.com/frond-edge/frond/edged/enrollexec"
	"github.com/frond-edge/frond/edged/hostsetup"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/clitest"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "edgecore" { // run by frond join: see linkEdgecore
		if err := enrollexec.Serve(context.Background(), os.Stdin, os.Stdout, enroll.JoinWith); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const joinToken = "abcdef.0123456789abcdef"

// startJoinHub starts a hub that grants every enrolment with the token; it counts them.
func startJoinHub(t *testing.T) (ca *leaftest.CA, door *leaftest.AuthHub, enrolled *atomic.Int64) {
	t.Helper()
	linkEdgecore(t)
	ca, enrolled = leaftest.NewCA(t), &atomic.Int64{}
	cert := ca.ServingCert(time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	door = leaftest.NewAuthHub(t, func() tls.Certificate { return cert }, func(c identity.Credential) *leaftest.Admission {
		if c.Token != joinToken {
			return nil
		}
		return &leaftest.Admission{
			Account: leaftest.LobbyAccount, Publish: []string{"call.cloud." + c.Key + ".>"}, Subscribe: []string{subject.InboxPrefix(c.Key) + ".>"},
		}
	})
	nc := door.Client(leaftest.LobbyAccount)
	_, err := nc.Subscribe("call.cloud.*."+identity.VerbEnrol, func(m *nats.Msg) {
		enrolled.Add(1)
		data, err := json.Marshal(identity.Enrolment{Expires: time.Now().Add(time.Hour), Now: time.Now()})
		if err != nil || m.Respond(data) != nil {
			t.Error("no answer")
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return ca, door, enrolled
}

// linkEdgecore puts this test's binary into the PATH as edgecore: TestMain does what its subcommand does.
func linkEdgecore(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.Symlink(self, filepath.Join(folder, "edgecore")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder)
}

// folderFlags are the flags that keep all files of a test in its folder.
func folderFlags(dir string) []string {
	return []string{
		"--dir", filepath.Join(dir, "data"), "--config", filepath.Join(dir, "edgecore.yaml"), "--unit-dir", filepath.Join(dir, "units"),
		"--runtime-endpoint", hostsetup.Hollow,
	}
}

// ignoredChecks are the checks that this machine may fail, or that another test disturbs.
const ignoredChecks = "--ignore-preflight-errors=root,edgecore,cgroups,ports,disk"

// A machine joins, a second time changes nothing, and a reset leaves nothing.
func TestJoin_TwiceThenReset(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "")
	ca, door, enrolled := startJoinHub(t)
	dir := t.TempDir()
	args := append([]string{
		door.Addr(), "--token", joinToken, "--ca-hash", ca.Hash(), "--node-name", "gw-1", "--no-start", "-o", "json", ignoredChecks,
	}, folderFlags(dir)...)
	var first, second joinResult
	for i, result := range []*joinResult{&first, &second} {
		code, out, talk := clitest.Run(NewJoin(), args...)
		if code != 0 {
			t.Fatalf("join %d: exit %d, %s", i, code, talk)
		}
		if err := json.Unmarshal([]byte(out), result); err != nil {
			t.Fatalf("join %d: %v in %q", i, err, out)
		}
		if already := i == 1; result.Already != already || already != strings.Contains(talk, "already joined as gw-1") {
			t.Errorf("join %d: %+v, %s", i, result, talk)
		}
	}
	if second.Key != first.Key || enrolled.Load() != 1 {
		t.Errorf("keys %s and %s, %d enrolments", first.Key, second.Key, enrolled.Load())
	}
	data, err := os.ReadFile(filepath.Join(dir, "edgecore.yaml"))
	if err != nil || bytes.Contains(data, []byte(joinToken)) {
		t.Errorf("configuration: %v\n%s", err, data)
	}
	cfg, err := config.ParseEdgeCore(data)
	if err != nil || cfg.Node != "gw-1" || cfg.Hub.URLs[0] != "tls://"+door.Addr() || !cfg.Runtime.Hollow {
		t.Errorf("configuration %+v: %v", cfg, err)
	}
	if code, _, talk := clitest.Run(NewJoin(), append([]string{
		door.Addr(), "--token", joinToken, "--ca-hash", ca.Hash(), "--node-name", "gw-2", "--no-start", ignoredChecks,
	}, folderFlags(dir)...)...); code != 1 || !strings.Contains(talk, "frond reset first") {
		t.Errorf("another name: exit %d, %s", code, talk)
	}

	// Without a yes, nothing is removed.
	r := &resetCommand{Machine: hostsetup.Machine{Dir: filepath.Join(dir, "data"), Config: filepath.Join(dir, "edgecore.yaml"), UnitDir: dir}}
	var talk bytes.Buffer
	if err := r.Run(t.Context(), strings.NewReader("\n"), &talk, &talk); err == nil || !strings.Contains(talk.String(), "[y/N]") {
		t.Errorf("reset without a yes: %v, %s", err, talk.String())
	}
	code, out, words := clitest.Run(NewReset(), append([]string{"--yes", "-o", "json"}, folderFlags(dir)...)...)
	var result resetResult
	if err := json.Unmarshal([]byte(out), &result); err != nil || code != 0 || !strings.Contains(words, "frond node revoke gw-1") || result.Node != "gw-1" {
		t.Errorf("reset: exit %d, %s, %q, %v", code, words, out, err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if code, _, talk := clitest.Run(NewReset(), append([]string{"--yes"}, folderFlags(dir)...)...); code != 0 || !strings.Contains(talk, "is no gateway") {
		t.Errorf("reset again: exit %d, %s", code, talk)
	}
}

// An unfit machine gets all failed checks at once, by name and with a hint, and nothing is changed.
func TestJoin_UnfitMachine(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "")
	_, door, enrolled := startJoinHub(t)
	dir := t.TempDir()
	code, _, talk := clitest.Run(NewJoin(), append([]string{
		door.Addr(), "--token", joinToken, "--ca-hash", "sha256:" + strings.Repeat("0", 64), "--node-name", "Pump_7", "--no-start", ignoredChecks,
	}, append(folderFlags(dir), "--runtime-endpoint", "unix://"+filepath.Join(dir, "none.sock"))...)...)
	if code != preflightFailed {
		t.Errorf("exit %d, want %d", code, preflightFailed)
	}
	for _, want := range []string{"FAILED   node-name", "FAILED   runtime", "FAILED   cloud", "Nothing was sent to it", "--runtime-endpoint", "3 checks failed"} {
		if !strings.Contains(talk, want) {
			t.Errorf("%q is not said:\n%s", want, talk)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 || enrolled.Load() > 0 {
		t.Errorf("left: %v, %v, %d enrolments", left, err, enrolled.Load())
	}
}

func TestJoin_CommandLine(t *testing.T) {
	hash := "sha256:" + strings.Repeat("0", 64)
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"no token":   {[]string{"h:1", "--ca-hash", hash}, "give one of --token"},
		"no hash":    {[]string{"h:1", "--token", "a.b"}, "anybody could answer"},
		"bad hash":   {[]string{"h:1", "--token", "a.b", "--ca-hash", "sha256:1"}, "64 hexadecimal"},
		"no port":    {[]string{"h", "--token", "a.b", "--ca-hash", hash}, "the port is missing"},
		"bad scheme": {[]string{"http://h", "--token", "a.b", "--ca-hash", hash}, "want CLOUD:PORT"},
		"output":     {[]string{"h:1", "--token", "a.b", "--ca-hash", hash, "-o", "xml"}, "choose json"},
	} {
		t.Run(name, func(t *testing.T) {
			if code, out, talk := clitest.Run(NewJoin(), tt.args...); code != 1 || out != "" || !strings.Contains(talk, tt.want) {
				t.Errorf("exit %d, %q, %q, want %q", code, out, talk, tt.want)
			}
		})
	}
}

// A token that the cloud does not know ends the command with a hint.
func TestJoin_WrongToken(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "")
	ca, door, _ := startJoinHub(t)
	j := &joinCommand{
		Machine: hostsetup.Machine{Dir: filepath.Join(t.TempDir(), "data"), Config: filepath.Join(t.TempDir(), "edgecore.yaml"), Runtime: hostsetup.Hollow, NoStart: true},
		node:    "gw-1", token: "abcdef.wrong", hashes: []string{ca.Hash()}, ignored: []string{"all"}, timeout: time.Minute,
	}
	var out, talk bytes.Buffer
	err := j.Run(context.WithoutCancel(t.Context()), door.Addr(), &out, &talk)
	if err == nil || !strings.Contains(err.Error(), "frond token create --node gw-1") {
		t.Errorf("error %v, %s", err, talk.String())
	}
}

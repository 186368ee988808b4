package enrollexec_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/edged/enrollexec"
	"github.com/frond-edge/frond/edged/identitydir"
)

// program writes a shell script that stands for edgecore.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edgecore")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRun_Results(t *testing.T) {
	for name, tt := range map[string]struct{ script, node, want string }{
		"enrolled":      {`cat >/dev/null; echo '{"record":{"node":"gw-1","key":"U"}}'`, "gw-1", ""},
		"refused":       {`cat >/dev/null; echo '{"error":"its token is unknown"}'`, "", "its token is unknown"},
		"older version": {`echo 'edgecore: unknown command "enroll"' >&2; exit 1`, "", "of the same version as frond"},
		"killed":        {`kill -9 $$`, "", "signal: killed"},
		"garbage":       {`cat >/dev/null; echo hello`, "", "invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			record, err := enrollexec.Run(t.Context(), program(t, tt.script), enrollexec.Options{Node: "gw-1", Deadline: time.Now().Add(time.Minute)})
			switch {
			case tt.want == "" && (err != nil || record.Node != tt.node):
				t.Errorf("record %+v, %v", record, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
	if _, err := enrollexec.Run(t.Context(), filepath.Join(t.TempDir(), "edgecore"), enrollexec.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the program: %v", err)
	}
}

// The end of the context interrupts the program, which still says what it knows.
func TestRun_ContextInterrupts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	began := filepath.Join(t.TempDir(), "began")
	path := program(t, `trap 'echo "{\"error\":\"not enrolled: interrupted\"}"; exit 0' INT; touch `+began+`; while :; do sleep 0.05; done`)
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(began); err == nil {
				cancel()
			}
			<-time.After(5 * time.Millisecond)
		}
	}()
	if _, err := enrollexec.Run(ctx, path, enrollexec.Options{}); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
}

func TestServe(t *testing.T) {
	options := enrollexec.Options{
		Node: "gw-1", Dir: "/d", Hubs: []string{"tls://h:1"}, TokenFile: "t", CAHashes: []string{"sha256:0"}, Timeout: time.Minute,
		Deadline: time.Now().Add(-time.Second).Round(0),
	}
	input, err := json.Marshal(options)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = enrollexec.Serve(t.Context(), bytes.NewReader(input), &out, func(ctx context.Context, got enrollexec.Options) (identitydir.Record, error) {
		if diff := cmp.Diff(options, got); diff != "" {
			t.Errorf("options (-want +got):\n%s", diff)
		}
		return identitydir.Record{}, context.Cause(ctx)
	})
	if err != nil || !strings.Contains(out.String(), "gave up after 1m0s") {
		t.Errorf("%v, %s", err, out.String())
	}
	if err := enrollexec.Serve(t.Context(), strings.NewReader("{"), &out, nil); err == nil {
		t.Error("half an input was taken")
	}
}

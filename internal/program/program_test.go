package program_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/frond-edge/frond/internal/program"
)

func TestProgram_Run(t *testing.T) {
	file := filepath.Join(t.TempDir(), "some.yaml")
	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args      []string
		fault     error
		code      int
		out, talk string
	}{
		"served":     {[]string{"--config", file}, nil, 0, "", ""},
		"fault":      {[]string{"--config", file}, errors.New("no hub"), 1, "", "some: with configuration " + file + ": no hub"},
		"no file":    {[]string{"--config", file + "x"}, nil, 1, "", "read configuration"},
		"own place":  {nil, nil, 1, "", "/etc/frond/some.yaml"},
		"arguments":  {[]string{"what"}, nil, 1, "", `unknown command "what"`},
		"version":    {[]string{"version"}, nil, 0, "devel", ""},
		"other flag": {[]string{"--conf", file}, nil, 1, "", "unknown flag"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, talk bytes.Buffer
			p := program.Program{Name: "some", Short: "Some program", Serve: func(_ context.Context, config []byte) error {
				if string(config) != "content" {
					t.Errorf("configuration %q", config)
				}
				return tt.fault
			}}
			code := p.Run(t.Context(), tt.args, &out, &talk)
			if code != tt.code || !strings.Contains(out.String(), tt.out) || !strings.Contains(talk.String(), tt.talk) || (tt.talk == "") != (talk.Len() == 0) {
				t.Errorf("exit %d, %q, %q, want %+v", code, out.String(), talk.String(), tt)
			}
		})
	}
}

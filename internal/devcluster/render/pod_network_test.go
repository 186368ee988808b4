package render_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/render"
)

// writePodNetwork writes a CNI configuration as containerd makes it from the template.
func writePodNetwork(t *testing.T, path, podCIDR string) {
	t.Helper()
	text, err := render.PodNetworkTemplateText("/run/ipam", true, true)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := template.Must(template.New("").Parse(string(text))).Execute(&b, struct{ PodCIDR string }{podCIDR}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestRemoveStalePodNetwork(t *testing.T) {
	for name, tt := range map[string]struct {
		written, node string
		kept          bool
	}{
		"same range":               {written: "10.244.1.0/24", node: "10.244.1.0/24", kept: true},
		"the Node has another one": {written: "10.244.1.0/24", node: "10.244.2.0/24"},
		"there is no Node":         {written: "10.244.1.0/24"},
		"nothing written yet":      {node: "10.244.1.0/24"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := render.PodNetworkPath(dir, "edge-1")
			if tt.written != "" {
				writePodNetwork(t, path, tt.written)
			}
			if err := render.RemoveStalePodNetwork(folder.Layout{Dir: dir}.Gateway("edge-1"), tt.node); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); (err == nil) != tt.kept {
				t.Errorf("kept: %t (%v), want %t", err == nil, err, tt.kept)
			}
		})
	}
}

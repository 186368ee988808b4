package toolchain_test

import (
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/internal/toolchain"
)

func TestEstimateCosts(t *testing.T) {
	got := toolchain.EstimateCosts([]toolchain.Listed{
		{ImportPath: "cached", GoFiles: []string{"a.go"}, DepOnly: true},
		{ImportPath: "small", GoFiles: []string{"a.go"}, Stale: true, DepOnly: true},
		{ImportPath: "large", GoFiles: []string{"a.go", "b.go"}, CgoFiles: []string{"c.go"}, Stale: true, DepOnly: true},
		{ImportPath: "library's main", Name: "main", GoFiles: []string{"a.go"}, DepOnly: true},
		{ImportPath: "program", Name: "main", GoFiles: []string{"a.go"}}, // cached, but to be linked
	}, 1e6)
	if len(got) != 3 || got["small"] <= 0 || got["large"] <= 2*got["small"] || got["program"] <= 0 {
		t.Errorf("got %v", got)
	}
}

func TestLineWriter_WritesWholeLines(t *testing.T) {
	var got []string
	w := toolchain.NewLineWriter(func(s string) { got = append(got, s) })
	for _, part := range []string{"k8s.io/a", "pi\nfmt\n", "", "os\r\nhalf"} {
		if n, err := io.WriteString(w, part); n != len(part) || err != nil {
			t.Fatalf("write %q: %d, %v", part, n, err)
		}
	}
	if diff := cmp.Diff([]string{"k8s.io/api", "fmt", "os"}, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

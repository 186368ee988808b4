package attacks_test

import (
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// nestedJSON returns JSON with this many levels.
func nestedJSON(levels int) string {
	return strings.Repeat(`{"a":`, levels) + "1" + strings.Repeat("}", levels)
}

// zstdBomb is small and decompresses to 256 MiB.
func zstdBomb(t *testing.T) []byte {
	t.Helper()
	var packed strings.Builder
	w, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for range 256 {
		if _, err := w.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return []byte(packed.String())
}

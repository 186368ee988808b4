package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// BenchmarkApply stores messages of 2 KiB for 1,000 objects; each batch is synced to disk.
func BenchmarkApply(b *testing.B) {
	data := strings.Repeat("x", 2000)
	for _, size := range []int{1, 3, 16, 256, 1000} {
		b.Run(fmt.Sprint("batch=", size), func(b *testing.B) {
			n := newNode(b, store.Config{})
			must(b, n.Replace(b.Context(), nil, "s1", 0))
			seq := uint64(0)
			for b.Loop() {
				batch := make([]wire.Message, 0, size)
				for range size {
					seq++
					batch = append(batch, apply(seq, fmt.Sprint("o", seq%1000), "u", data))
				}
				must(b, n.Apply(b.Context(), batch, seq))
			}
			b.ReportMetric(float64(seq)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

func BenchmarkPut(b *testing.B) {
	n := newNode(b, store.Config{})
	object := object("u", strings.Repeat("x", 2000))
	for b.Loop() {
		_, err := n.Put(b.Context(), key("a"), object, nil)
		must(b, err)
	}
}

func BenchmarkOpen(b *testing.B) {
	n := newNode(b, store.Config{})
	var all []wire.Message
	for i := range uint64(1000) {
		all = append(all, apply(i+1, fmt.Sprint("o", i), "u", strings.Repeat("x", 2000)))
	}
	must(b, n.Replace(b.Context(), all, "s1", 1000))
	for b.Loop() {
		n.open(store.Config{})
	}
}

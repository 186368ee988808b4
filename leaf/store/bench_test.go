package store_test

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// processorTime returns the time that this process, with its server, has spent on processors.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkApply stores messages of 2 KiB for 1,000 objects; each batch is synced to disk.
func BenchmarkApply(b *testing.B) {
	data := strings.Repeat("x", 2000)
	for _, size := range []int{1, 3, 16, 256, 1000} {
		b.Run(fmt.Sprint("batch=", size), func(b *testing.B) {
			dir := b.TempDir()
			n := openNode(b, dir, store.Config{HighWaterFile: filepath.Join(dir, "store.mark")})
			must(b, n.Replace(b.Context(), nil, "s1", 0))
			seq, revision, before := uint64(0), n.Revision(), processorTime(b)
			for b.Loop() {
				batch := make([]wire.Message, 0, size)
				for range size {
					seq++
					batch = append(batch, applyMessage(seq, fmt.Sprint("o", seq%1000), "u", data))
				}
				must(b, n.Apply(b.Context(), batch, seq))
			}
			b.ReportMetric(float64(seq)/b.Elapsed().Seconds(), "msg/s")
			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
			b.ReportMetric(float64(n.Revision()-revision)/float64(b.N), "records/op")
		})
	}
}

func BenchmarkPut(b *testing.B) {
	n := newNode(b, store.Config{})
	object := objectJSON("u", strings.Repeat("x", 2000))
	for b.Loop() {
		_, err := n.Put(b.Context(), configMapKey("a"), object, nil)
		must(b, err)
	}
}

func BenchmarkOpen(b *testing.B) {
	n := newNode(b, store.Config{})
	var all []wire.Message
	for i := range uint64(1000) {
		all = append(all, applyMessage(i+1, fmt.Sprint("o", i), "u", strings.Repeat("x", 2000)))
	}
	must(b, n.Replace(b.Context(), all, "s1", 1000))
	for b.Loop() {
		n.openStore(store.Config{})
	}
}

// BenchmarkSaveLastGood copies 1,000 objects of 2 KiB of base64, of which a fourth can be saved by compression, as of certificates.
func BenchmarkSaveLastGood(b *testing.B) {
	dir := b.TempDir()
	n := newNode(b, lastGoodConfig(dir))
	var all []wire.Message
	random := rand.NewChaCha8([32]byte{})
	for i := range uint64(1000) {
		data := make([]byte, 1500)
		_, err := random.Read(data)
		must(b, err)
		all = append(all, applyMessage(i+1, fmt.Sprint("o", i), "u", base64.StdEncoding.EncodeToString(data)))
	}
	must(b, n.Replace(b.Context(), all, "s1", 1000))
	seq := uint64(1000)
	for b.Loop() {
		seq++
		must(b, n.Apply(b.Context(), []wire.Message{applyMessage(seq, "o1", "u", fmt.Sprint(seq))}, seq))
		must(b, n.SaveLastGood(b.Context()))
	}
	info, err := os.Stat(filepath.Join(dir, "store.copy"))
	must(b, err)
	b.ReportMetric(float64(info.Size()), "bytes")
}

// BenchmarkSecrets saves and loads 1,000 Secrets of 2 KiB, as they are and sealed.
func BenchmarkSecrets(b *testing.B) {
	for _, sealed := range []bool{false, true} {
		name := map[bool]string{false: "plain", true: "sealed"}[sealed]
		dir := b.TempDir()
		cfg := lastGoodConfig(dir)
		if sealed {
			cfg = sealingConfig(b, dir)
		}
		n := openNode(b, dir, cfg)
		must(b, n.Replace(b.Context(), nil, "s1", 0))
		seq := uint64(0)
		b.Run("save/"+name, func(b *testing.B) {
			for b.Loop() {
				var batch []wire.Message
				for i := range 1000 {
					seq++
					m := applyMessage(seq, "", "u", strings.Repeat("x", 2000))
					m.Key = secretKey(fmt.Sprint("s", i))
					batch = append(batch, m)
				}
				must(b, n.Apply(b.Context(), batch, seq))
			}
		})
		b.Run("load/"+name, func(b *testing.B) {
			for b.Loop() {
				n.openStore(cfg)
			}
		})
	}
}

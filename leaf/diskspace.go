package leaf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// diskCheckInterval is how often the free space is measured: one system call.
	diskCheckInterval = time.Second
	// reserveFile occupies the space that is kept for control state.
	reserveFile = "reserve"
	// With less free space than the reserve the disk is low; with less than this fraction of it the reserve shrinks: far more than the
	// store writes in a second.
	reserveFloorDivisor = 4
	// minReserveFloor is the free space that makes the start of a server worthwhile.
	minReserveFloor = 1 << 20
)

// DiskSpace is the measured state of the store's disk.
type DiskSpace struct {
	// Free is the space that every writer may still use, in bytes.
	Free int64
	// Reserve is the space kept for control state in addition; less than configured after it had to shrink.
	Reserve int64
	// Low says that telemetry must be dropped to make room for control state.
	Low bool
	// Failed says that JetStream reached the end of the disk and refuses writes until there is space again.
	Failed bool
}

// String describes the state in a few words.
func (s DiskSpace) String() string {
	const mib = 1 << 20
	text := fmt.Sprintf("%d MiB free, %d MiB in reserve", s.Free/mib, s.Reserve/mib)
	switch {
	case s.Failed:
		return "the store's disk is full: " + text
	case s.Low:
		return "the store's disk is almost full: " + text
	default:
		return text
	}
}

// diskReserve keeps space on the store's disk for control state.
type diskReserve struct {
	dir     string
	reserve int64
	metrics *linkMetrics
	log     *zap.Logger

	mu   sync.Mutex
	last DiskSpace // guarded by mu
}

// space returns the last measurement, at most a second old.
func (d *diskReserve) space() DiskSpace {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

// measure measures once, before a server writes that may depend on the reserve.
func (d *diskReserve) measure() {
	if space, err := d.check(); err != nil {
		d.log.Warn("free space unknown", zap.Error(err))
	} else {
		d.set(space)
	}
}

// errDiskFull ends one run of the nats-server: it met a full disk and there is space now. After a failed write its file stores refuse all
// writes until they are opened again.
var errDiskFull = errors.New("JetStream met a full disk")

// watch maintains the reserve and returns errDiskFull when the server has to be restarted. A server that was unhealthy from its start
// (born), perhaps because of a damaged file, is restarted only after the disk was low and has recovered.
func (d *diskReserve) watch(ctx context.Context, ns *server.Server, born bool) error {
	tick := time.NewTicker(diskCheckInterval)
	defer tick.Stop()
	detector := diskFailureDetector{floor: d.floor(), born: born}
	health := healthCheck{call: func() bool { return isUnhealthy(ns) }}
	for {
		space, err := d.check()
		if err != nil {
			d.log.Warn("free space unknown", zap.Error(err))
		} else {
			space.Failed = detector.observe(time.Now(), space, health.unhealthy())
			d.set(space)
			if space.Failed && space.Free >= d.floor() && (!born || !space.Low) {
				return errDiskFull
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// unhealthyWithoutCause is how long a server must be unhealthy until it counts as failed although the disk was never seen to be tight: it
// may have been full between two checks. Creating a stream looks unhealthy, too, and takes seconds on a slow disk.
const unhealthyWithoutCause = 15 * time.Second

// diskFailureDetector tells a server that met a full disk from one that is unhealthy for another reason. It is made for one server.
type diskFailureDetector struct {
	// floor is the free space in bytes below which the disk is tight.
	floor int64
	// born: the server was unhealthy from its start.
	born bool
	// low and tight: a measurement since the start of the server was low or below floor.
	low, tight bool
	// unhealthySince is the first of the unhealthy checks in a row, zero if the last one was healthy.
	unhealthySince time.Time
}

// observe takes a check of the disk and of the server's health, and reports whether the server has failed on a full disk. That takes two
// unhealthy checks in a row: while a stream is created or deleted it looks broken for a moment.
func (f *diskFailureDetector) observe(now time.Time, space DiskSpace, unhealthy bool) bool {
	f.low = f.low || space.Low
	f.tight = f.tight || space.Low || space.Free < f.floor
	if !unhealthy {
		f.unhealthySince = time.Time{}
		return false
	}
	if f.unhealthySince.IsZero() {
		f.unhealthySince = now
		return false
	}
	if f.born {
		return f.low
	}
	return f.tight || now.Sub(f.unhealthySince) >= unhealthyWithoutCause
}

// isUnhealthy reports whether JetStream is off or a part of it refuses writes.
func isUnhealthy(ns *server.Server) bool {
	return !ns.JetStreamEnabled() || ns.Healthz(nil).Error != ""
}

func (d *diskReserve) floor() int64 { return max(d.reserve/reserveFloorDivisor, minReserveFloor) }

// check measures the free space, and shrinks or grows the reserve.
func (d *diskReserve) check() (DiskSpace, error) {
	free, err := freeBytes(d.dir)
	if err != nil {
		return DiskSpace{}, err
	}
	path := filepath.Join(d.dir, reserveFile)
	held := int64(0)
	if info, err := os.Stat(path); err == nil {
		held = info.Size()
	}
	want := held
	switch {
	case free < d.floor():
		want = max(0, held-(2*d.floor()-free))
	case held < d.reserve && free > d.reserve+d.reserve-held:
		want = d.reserve
	}
	if want != held {
		if err := resizeReserve(path, want); err != nil {
			return DiskSpace{}, fmt.Errorf("reserve: %w", err)
		}
		d.log.Info("reserve changed", zap.Int64("from", held), zap.Int64("to", want), zap.Int64("free", free))
		if free, err = freeBytes(d.dir); err != nil {
			return DiskSpace{}, err
		}
	}
	return DiskSpace{Free: free, Reserve: want, Low: free < d.reserve || want < d.reserve}, nil
}

func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil //nolint:gosec // no disk has 2^63 bytes
}

// resizeReserve gives the reserve real blocks. If they do not fit, it restores the old size.
func resizeReserve(path string, size int64) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if size < info.Size() {
		return f.Truncate(size)
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = io.Copy(io.NewOffsetWriter(f, info.Size()), io.LimitReader(zeroReader{}, size-info.Size()))
	}
	if err != nil {
		return errors.Join(err, f.Truncate(info.Size()))
	}
	return nil
}

// zeroReader is an endless source of zero bytes.
type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// set records a measurement, and logs when it changes what writers may do.
func (d *diskReserve) set(space DiskSpace) {
	d.metrics.free.Set(float64(space.Free))
	d.metrics.reserve.Set(float64(space.Reserve))
	d.mu.Lock()
	last := d.last
	d.last = space
	d.mu.Unlock()
	if last.Low == space.Low && last.Failed == space.Failed {
		return
	}
	if space.Low || space.Failed {
		d.log.Error("disk of the store is full or almost", zap.Stringer("space", space))
	} else {
		d.log.Info("disk of the store has space again", zap.Stringer("space", space))
	}
}

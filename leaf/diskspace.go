package leaf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// DiskSpace returns the last measurement, at most a second old.
func (s *Server) DiskSpace() DiskSpace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.diskSpace
}

// errDiskFull ends one run of the nats-server: it met a full disk and there is space now. After a failed write its file stores refuse all
// writes until they are opened again.
var errDiskFull = errors.New("JetStream met a full disk")

// watchDisk maintains the reserve and returns errDiskFull when the server has to be restarted. A server that was unhealthy from its start
// (born), perhaps because of a damaged file, is restarted only after the disk was low and has recovered.
func (s *Server) watchDisk(ctx context.Context, ns *server.Server, born bool) error {
	tick := time.NewTicker(diskCheckInterval)
	defer tick.Stop()
	low, before := false, false
	for {
		space, err := s.checkDisk()
		if err != nil {
			s.log.Warn("free space unknown", zap.Error(err))
		} else {
			low = low || space.Low
			// Two unhealthy checks in a row: while a stream is created or deleted it looks broken for a moment.
			now := isUnhealthy(ns)
			space.Failed = now && before && (!born || low)
			before = now
			s.setDiskSpace(space)
			if space.Failed && space.Free >= s.reserveFloor() && (!born || !space.Low) {
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

// isUnhealthy reports whether JetStream is off or a part of it refuses writes.
func isUnhealthy(ns *server.Server) bool {
	return !ns.JetStreamEnabled() || ns.Healthz(nil).Error != ""
}

func (s *Server) lowThreshold() int64 { return s.cfg.Reserve }
func (s *Server) reserveFloor() int64 { return max(s.cfg.Reserve/reserveFloorDivisor, minReserveFloor) }

// checkDisk measures the free space, and shrinks or grows the reserve.
func (s *Server) checkDisk() (DiskSpace, error) {
	free, err := freeBytes(s.cfg.Dir)
	if err != nil {
		return DiskSpace{}, err
	}
	path := filepath.Join(s.cfg.Dir, reserveFile)
	held := int64(0)
	if info, err := os.Stat(path); err == nil {
		held = info.Size()
	}
	want := held
	switch {
	case free < s.reserveFloor():
		want = max(0, held-(2*s.reserveFloor()-free))
	case held < s.cfg.Reserve && free > s.lowThreshold()+s.cfg.Reserve-held:
		want = s.cfg.Reserve
	}
	if want != held {
		if err := resizeReserve(path, want); err != nil {
			return DiskSpace{}, fmt.Errorf("reserve: %w", err)
		}
		s.log.Info("reserve changed", zap.Int64("from", held), zap.Int64("to", want), zap.Int64("free", free))
		if free, err = freeBytes(s.cfg.Dir); err != nil {
			return DiskSpace{}, err
		}
	}
	return DiskSpace{Free: free, Reserve: want, Low: free < s.lowThreshold() || want < s.cfg.Reserve}, nil
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

func (s *Server) setDiskSpace(space DiskSpace) {
	s.metrics.free.Set(float64(space.Free))
	s.metrics.reserve.Set(float64(space.Reserve))
	s.mu.Lock()
	last := s.diskSpace
	s.diskSpace = space
	s.mu.Unlock()
	if last.Low == space.Low && last.Failed == space.Failed {
		return
	}
	if space.Low || space.Failed {
		s.log.Error("disk of the store is full or almost", zap.Stringer("space", space))
	} else {
		s.log.Info("disk of the store has space again", zap.Stringer("space", space))
	}
}

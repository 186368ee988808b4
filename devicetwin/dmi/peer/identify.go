package peer

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Peer is the process at the other end of a unix socket: the one that connected, or for a client the one that listens.
type Peer struct {
	PID int32
	UID uint32
	// Pod is the pod of the process. It is empty for a process outside pods.
	Pod types.UID
}

// Identity is what stays the same when the process is replaced: a container that restarts keeps its pod.
func (p Peer) Identity() string {
	if p.Pod != "" {
		return "pod:" + string(p.Pod)
	}
	return "uid:" + strconv.FormatUint(uint64(p.UID), 10)
}

// errGone reports a process that ended before its control group could be read.
var errGone = errors.New("the process has ended")

// Identify returns the peer of a connection. cgroupRoot is that of PodOfCgroup.
//
// The number of a process is used again after it has ended. The kernel's handle of the process that connected (SO_PEERPIDFD, Linux 6.5) says whether
// it is still there after its control group was read. An older kernel has no such handle; there a handle that is opened by number before
// reading shows at least that the process did not change meanwhile, and its user must be the one of the connection.
func Identify(conn syscall.Conn, cgroupRoot string) (Peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("the connection's descriptor: %w", err)
	}
	var (
		cred    *unix.Ucred
		credErr error
		handle  = -1
		// handleErr is ENOPROTOOPT with a kernel that has no handles. With another one the process has ended.
		handleErr error
	)
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if h, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
			handle = h
		} else {
			handleErr = err
		}
	}); err != nil {
		return Peer{}, fmt.Errorf("the connection's descriptor: %w", err)
	}
	if handle >= 0 {
		defer unix.Close(handle) //nolint:errcheck // nothing was written
	}
	if credErr != nil {
		return Peer{}, fmt.Errorf("SO_PEERCRED: %w", credErr)
	}
	if cred.Pid <= 0 {
		return Peer{}, errors.New("the process is in a process namespace that is not below this one")
	}
	if handle < 0 {
		if !errors.Is(handleErr, unix.ENOPROTOOPT) {
			return Peer{}, fmt.Errorf("SO_PEERPIDFD: %w: %w", errGone, handleErr)
		}
		if handle, err = openByNumber(cred); err != nil {
			return Peer{}, err
		}
		defer unix.Close(handle) //nolint:errcheck // nothing was written
	}
	return identifyProcess(cred, handle, cgroupRoot)
}

// openByNumber is the way without SO_PEERPIDFD.
func openByNumber(cred *unix.Ucred) (int, error) {
	handle, err := unix.PidfdOpen(int(cred.Pid), 0)
	if err != nil {
		return -1, fmt.Errorf("pidfd_open: %w", err)
	}
	info, err := os.Stat("/proc/" + strconv.Itoa(int(cred.Pid)))
	if err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); !ok || stat.Uid != cred.Uid && stat.Uid != 0 { // root: a process that is not dumpable
			err = errGone
		}
	}
	if err != nil {
		unix.Close(handle) //nolint:errcheck // nothing was written
		return -1, fmt.Errorf("process %d: %w", cred.Pid, err)
	}
	return handle, nil
}

// identifyProcess reads the control group of a process, and then checks with the handle that it was this process's.
func identifyProcess(cred *unix.Ucred, handle int, cgroupRoot string) (Peer, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(int(cred.Pid)) + "/cgroup")
	if err != nil {
		return Peer{}, fmt.Errorf("the control group of process %d: %w", cred.Pid, err)
	}
	if err := unix.PidfdSendSignal(handle, 0, nil, 0); err != nil && !errors.Is(err, unix.EPERM) {
		return Peer{}, fmt.Errorf("process %d: %w: %w", cred.Pid, errGone, err)
	}
	pod, err := PodOfCgroup(string(text), cgroupRoot)
	if err != nil {
		return Peer{}, fmt.Errorf("process %d: %w", cred.Pid, err)
	}
	return Peer{PID: cred.Pid, UID: cred.Uid, Pod: pod}, nil
}

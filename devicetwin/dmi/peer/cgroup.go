package peer

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// errCgroup reports a control group that says two things.
var errCgroup = errors.New("ambiguous control group")

// PodOfCgroup returns the pod of a process from the text of its /proc/PID/cgroup, or "" if the process belongs to no pod. root is the control
// group below which the kubelet makes those of pods (its cgroupRoot), "" or "/" if there is none.
//
// Only the first names below root count: a process that may make control groups below its own could give them a name like another pod's.
func PodOfCgroup(text, root string) (types.UID, error) {
	var found types.UID
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(fields) != 3 {
			return "", fmt.Errorf("line %q of the control group: want ID:CONTROLLERS:PATH", line)
		}
		pod := podOfPath(fields[2], root)
		if pod == "" {
			continue // with version 1 not all hierarchies need to have the pod
		}
		if found != "" && found != pod {
			return "", fmt.Errorf("%w: pods %s and %s", errCgroup, found, pod)
		}
		found = pod
	}
	return found, nil
}

// podOfPath reads one path: with the driver systemd
// /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0123_4567.slice/…, with cgroupfs /kubepods/burstable/pod0123-4567/….
// A pod of guaranteed quality is without the middle level.
func podOfPath(path, root string) types.UID {
	below, ok := strings.CutPrefix(path, strings.TrimSuffix(root, "/")+"/")
	if !ok {
		return ""
	}
	segments := strings.Split(below, "/")
	switch segments[0] {
	case "kubepods.slice":
		return podOfSlice(segments[1:])
	case "kubepods":
		return podOfFolder(segments[1:])
	}
	return ""
}

func podOfSlice(segments []string) types.UID {
	prefix := "kubepods"
	for i, segment := range segments {
		name, ok := strings.CutSuffix(segment, ".slice")
		if !ok || i > 1 {
			return ""
		}
		if uid, ok := strings.CutPrefix(name, prefix+"-pod"); ok {
			return types.UID(strings.ReplaceAll(uid, "_", "-"))
		}
		if name != prefix+"-burstable" && name != prefix+"-besteffort" {
			return ""
		}
		prefix = name
	}
	return ""
}

func podOfFolder(segments []string) types.UID {
	if len(segments) > 0 && (segments[0] == "burstable" || segments[0] == "besteffort") {
		segments = segments[1:]
	}
	if len(segments) == 0 {
		return ""
	}
	uid, _ := strings.CutPrefix(segments[0], "pod")
	if uid == segments[0] {
		return ""
	}
	return types.UID(uid)
}

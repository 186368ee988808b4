package methodcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/devicecall"
	"github.com/frond-edge/frond/leaf/store"
)

// loopback is where a mapper in the host's network is reached: the framework listens on all addresses.
const loopback = "127.0.0.1"

// PodLocator finds the REST servers of mappers by who has registered a protocol.
type PodLocator struct {
	// Identity returns who has registered a protocol, as peer.Peer.Identity has it; "" if nobody has.
	Identity func(protocol string) string
	// Pods returns the pods in the store.
	Pods func() []store.Entry
	// RuntimeAddresses returns the addresses that the runtime has assigned to a running pod: the addresses in the store are what the cloud says.
	RuntimeAddresses func(ctx context.Context, podUID string) ([]netip.Addr, error)
	// HostPort is the port of a mapper outside pods; 0 is devicecall.DefaultPort.
	HostPort int
}

// Locate implements Locator.
func (l PodLocator) Locate(ctx context.Context, protocol string) (string, error) {
	identity := l.Identity(protocol)
	uid, isPod := strings.CutPrefix(identity, "pod:")
	switch {
	case identity == "":
		return "", fmt.Errorf("no mapper has registered protocol %q on this gateway", protocol)
	case !isPod: // a process that devices.dmi.allowHost has let in
		port := l.HostPort
		if port == 0 {
			port = devicecall.DefaultPort
		}
		return net.JoinHostPort(loopback, strconv.Itoa(port)), nil
	}
	pod, err := l.pod(uid)
	if err != nil {
		return "", err
	}
	port, err := portOf(pod)
	if err != nil {
		return "", err
	}
	if pod.Spec.HostNetwork {
		return net.JoinHostPort(loopback, port), nil
	}
	if static := pod.Annotations[corev1.MirrorPodAnnotationKey]; static != "" {
		uid = static // the runtime knows the static pod, not the mirror pod
	}
	addresses, err := l.RuntimeAddresses(ctx, uid)
	if err != nil {
		return "", fmt.Errorf("address of mapper %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	for _, a := range addresses {
		if a.IsValid() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLinkLocalUnicast() {
			return net.JoinHostPort(a.String(), port), nil
		}
	}
	return "", fmt.Errorf("mapper %s/%s does not run: its pod has no address", pod.Namespace, pod.Name)
}

// pod returns the pod of a UID. The mapper may run under a static pod's own UID, which its mirror pod names: that is a pod of the Node, which no user
// creates in place of another one.
func (l PodLocator) pod(uid string) (*corev1.Pod, error) {
	var mirror *corev1.Pod
	for _, entry := range l.Pods() {
		if entry.UID != uid && !strings.Contains(string(entry.Object), uid) {
			continue // the common case, cheaper than parsing
		}
		pod := &corev1.Pod{}
		if err := json.Unmarshal(entry.Object, pod); err != nil {
			continue // another pod's fault
		}
		switch {
		case string(pod.UID) == uid:
			return pod, nil
		case pod.Annotations[corev1.MirrorPodAnnotationKey] == uid && isOfNode(pod):
			mirror = pod
		}
	}
	if mirror != nil {
		return mirror, nil
	}
	return nil, errors.New("the pod of the mapper is not on this gateway any more")
}

// isOfNode reports whether a pod belongs to a Node, as mirror pods do.
func isOfNode(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.APIVersion == "v1" && o.Kind == "Node" })
}

// portOf returns the port of a mapper's REST server.
func portOf(pod *corev1.Pod) (string, error) {
	text, ok := pod.Annotations[devicecall.PortAnnotation]
	if !ok {
		return strconv.Itoa(devicecall.DefaultPort), nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return "", fmt.Errorf("mapper %s/%s: annotation %s: %q is no port", pod.Namespace, pod.Name, devicecall.PortAnnotation, text)
	}
	return strconv.FormatUint(port, 10), nil
}

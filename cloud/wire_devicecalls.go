package cloud

import (
	"context"
	"errors"
	"fmt"
	"net"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/cloud/devicecall"
	"github.com/frond-edge/frond/cloud/inspect"
	"github.com/frond-edge/frond/streams/tunnel"
)

// buildDeviceCalls creates the handler of calls of devices' methods.
func buildDeviceCalls(f *foundation, admission *admission, dialer *tunnel.Dialer) (*devicecall.Handler, error) {
	client, err := dynamic.NewForConfig(f.clients.Config)
	if err != nil {
		return nil, fmt.Errorf("calls of devices: %w", err)
	}
	all := client.Resource(devices.GroupVersion().WithResource(devices.DevicesResource))
	nodeOf := func(ctx context.Context, id types.NamespacedName) (string, error) {
		device, err := all.Namespace(id.Namespace).Get(ctx, id.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		node, holder := devices.AssignedNode(device), devices.HolderOf(device)
		if node != holder {
			return "", fmt.Errorf("it has moved, and gateway %s has not confirmed that it has removed it", holder)
		}
		return node, nil
	}
	return devicecall.New(inspect.AccessReviewer{Kube: f.clients.Own}, nodeOf, dialReserved(admission, dialer, config.EdgeDevicePort), f.log.Named("devicecall")), nil
}

// dialReserved returns the dial of a port that cloudcore's gateway opens to nobody. user is logged on both ends.
func dialReserved(admission *admission, dialer *tunnel.Dialer, port uint16) func(ctx context.Context, node, user string) (net.Conn, error) {
	return func(ctx context.Context, node, user string) (net.Conn, error) {
		if why := admission.blockedReason(node); why != "" {
			return nil, errors.New(why)
		}
		conn, err := dialer.Dial(tunnel.WithLabel(ctx, user), node, port)
		if err != nil {
			return nil, err // and not a nil *tunnel.Conn in an interface
		}
		return conn, nil
	}
}

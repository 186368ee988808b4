package wan

import (
	"context"
	"fmt"
	"net"
	"runtime"

	"github.com/vishvananda/netns"
)

// inNamespace runs do on a thread in the network namespace called name; "" is the present one. Sockets that do
// makes belong to that namespace permanently.
func inNamespace(name string, do func() error) (err error) {
	if name == "" {
		return do()
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer func() { _ = before.Close() }()
	target, err := netns.GetFromName(name)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open network namespace %s: %w", name, err)
	}
	defer func() { _ = target.Close() }()
	if err := netns.Set(target); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace %s: %w", name, err)
	}
	defer func() {
		// A thread that cannot return stays locked, so the runtime ends it with this goroutine and no other goroutine runs on it.
		if back := netns.Set(before); back == nil {
			runtime.UnlockOSThread()
		} else if err == nil {
			err = fmt.Errorf("leave network namespace %s: %w", name, back)
		}
	}()
	return do()
}

// Listen listens for TCP inside a network namespace; "" is the present one.
func Listen(namespace, address string) (l net.Listener, err error) {
	err = inNamespace(namespace, func() error {
		l, err = net.Listen("tcp", address) //nolint:noctx // an address, not a name: nothing to wait for
		return err
	})
	return l, err
}

// Dial dials an IP address and port inside a network namespace; "" is the present one. A host name would be resolved by another
// thread, outside the namespace.
func Dial(ctx context.Context, namespace, address string) (c net.Conn, err error) {
	err = inNamespace(namespace, func() error {
		var d net.Dialer
		c, err = d.DialContext(ctx, "tcp", address)
		return err
	})
	return c, err
}

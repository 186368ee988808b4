package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/cmd/frond/devicetext"
	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/cli"
)

type watcher struct {
	cluster
	node        string
	changesOnly bool
	output      cli.Output
}

func newWatch() *cobra.Command {
	w := &watcher{}
	cmd := &cobra.Command{
		Use:   "watch [NAME]",
		Short: "Print each change of a device, or of several, until interrupted",
		Long: `Print the values of a device, or of all devices of a namespace or a gateway, and then each change: reported and desired values, the
state, the gateway and the conditions. With -o json each line is one JSON object. The command goes on after a restart of the apiserver and
prints then what has changed meanwhile; of several changes in a moment it prints the last.`,
		Example: "  frond device watch boiler\n  frond device watch -A --node gw-17 -o json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			return w.Run(cmd.Context(), name, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	w.AddNamespacedFlags(cmd)
	w.output.AddFlag(cmd)
	cmd.Flags().BoolVarP(&w.all, "all-namespaces", "A", false, "of all namespaces")
	cmd.Flags().StringVar(&w.node, "node", "", "only those of a gateway")
	cmd.Flags().BoolVar(&w.changesOnly, "watch-only", false, "print changes only, not the values of the start")
	return cmd
}

// Run prints changes until ctx ends, and then returns nil.
func (w *watcher) Run(ctx context.Context, name string, out, talk io.Writer) error {
	if name != "" && w.all {
		return errors.New("a device of a name is in one namespace: leave out NAME or --all-namespaces")
	}
	client, namespace, err := w.connect()
	if err != nil {
		return err
	}
	present, err := w.present(ctx, client, namespace, name)
	if err != nil {
		return err
	}
	printer := &devicetext.Printer{Out: out, JSON: w.output.JSON()}
	if w.changesOnly {
		for i := range present {
			printer.Remember(&present[i])
		}
	}
	f := newFollower(client, namespace, name, w.node, talk)
	return f.run(ctx, func(id string, d *deviceview.Device) error { return printer.Print(id, d, time.Now()) })
}

// present returns the devices of the start. It fails where the watch would wait for ever: no kinds, no rights, no such device.
func (w *watcher) present(ctx context.Context, client dynamic.Interface, namespace, name string) ([]deviceview.Device, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeflags.Timeout)
	defer cancel()
	all, err := list(ctx, client, namespace, w.node)
	if err != nil || name == "" {
		return all, err
	}
	d, err := read(ctx, client, namespace, name)
	if err != nil {
		return nil, err
	}
	if w.node != "" && d.Node != w.node {
		return nil, fmt.Errorf("device %s/%s is at %q, not at %q", namespace, name, d.Node, w.node)
	}
	return []deviceview.Device{d}, nil
}

// follower follows Devices and their DeviceStatuses.
type follower struct {
	devices, statuses cache.SharedIndexInformer
	queue             workqueue.TypedInterface[string]

	mu   sync.Mutex
	talk io.Writer // guarded by mu: both informers complain
}

func newFollower(client dynamic.Interface, namespace, name, node string, talk io.Writer) *follower {
	ofName, ofNode := fields.Everything(), fields.Everything()
	if name != "" {
		ofName = fields.OneTermEqualSelector(metav1.ObjectNameField, name)
	}
	if node != "" {
		ofNode = fields.OneTermEqualSelector("spec.nodeName", node)
	}
	f := &follower{queue: workqueue.NewTyped[string](), talk: talk}
	informer := func(resource string, selector fields.Selector) cache.SharedIndexInformer {
		return dynamicinformer.NewFilteredDynamicInformer(client, devices.GroupVersion().WithResource(resource), namespace, 0, nil,
			func(o *metav1.ListOptions) { o.FieldSelector = selector.String() }).Informer()
	}
	f.devices = informer(devices.DevicesResource, fields.AndSelectors(ofName, ofNode))
	f.statuses = informer(devices.DeviceStatusesResource, ofName)
	return f
}

// run calls changed with each device that may have changed, nil if it is gone, until ctx ends or changed fails.
func (f *follower) run(ctx context.Context, changed func(id string, d *deviceview.Device) error) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, informer := range []cache.SharedIndexInformer{f.devices, f.statuses} {
		if err := informer.SetWatchErrorHandlerWithContext(f.complain); err != nil {
			return fmt.Errorf("watch devices: %w", err)
		}
		enqueue := func(o any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
				f.queue.Add(key)
			}
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, o any) { enqueue(o) }, DeleteFunc: enqueue}); err != nil {
			return fmt.Errorf("watch devices: %w", err)
		}
		running.Go(func() { informer.RunWithContext(klog.NewContext(ctx, logr.Discard())) }) // complain says what matters
	}
	if !cache.WaitForCacheSync(ctx.Done(), f.devices.HasSynced, f.statuses.HasSynced) {
		return nil // interrupted
	}
	defer context.AfterFunc(ctx, f.queue.ShutDown)()
	for {
		id, over := f.queue.Get()
		if over {
			return nil
		}
		d, err := f.device(id)
		if err == nil {
			err = changed(id, d)
		}
		f.queue.Done(id)
		if err != nil {
			return err
		}
	}
}

// device returns a device, nil if it is not there.
func (f *follower) device(id string) (*deviceview.Device, error) {
	var device devices.Device
	if there, err := find(f.devices, id, &device); err != nil || !there {
		return nil, err
	}
	reported := &devices.DeviceStatus{}
	there, err := find(f.statuses, id, reported)
	if err != nil {
		return nil, err
	}
	if !there {
		reported = nil
	}
	d := deviceview.New(&device, reported)
	return &d, nil
}

func find(in cache.SharedIndexInformer, id string, into any) (there bool, err error) {
	found, there, err := in.GetStore().GetByKey(id)
	if err != nil || !there {
		return false, err
	}
	o, ok := found.(*unstructured.Unstructured)
	if !ok {
		return false, fmt.Errorf("device %s: unexpected %T", id, found)
	}
	return true, decode(o, into)
}

// complain says that the watch is interrupted. The informer tries again.
func (f *follower) complain(ctx context.Context, _ *cache.Reflector, err error) {
	if ctx.Err() != nil || errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // a normal end of a watch
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, _ = fmt.Fprintln(f.talk, "watch interrupted, trying again:", err)
}

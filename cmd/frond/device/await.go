package device

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/cli"
)

const (
	// pollInterval is how often --wait looks.
	pollInterval = 500 * time.Millisecond
	// defaultWait is how long --wait waits.
	defaultWait = time.Minute
)

// The exit codes of commands that change something at a device. They are stable.
const (
	exitRejected = 3 // it was refused and will not happen
	exitAway     = 4 // the gateway or the device is not there
	exitTimeOver = 5 // they are there, and it has not happened in time
)

// awaitApplied waits until the device reports the desired values of a generation. Its errors have the exit codes above; others are of the cluster. It
// looks at least once, however short the timeout.
func awaitApplied(ctx context.Context, client dynamic.Interface, namespace, name string, generation int64, timeout time.Duration) error {
	ticker, over := time.NewTicker(pollInterval), time.After(timeout)
	defer ticker.Stop()
	id := namespace + "/" + name
	var last *deviceview.Device
	var fault error
	for {
		d, err := readWithin(ctx, client, namespace, name)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return fmt.Errorf("device %s: the desired values are set, but nobody can see what became of them: %w", id, err)
		case err != nil: // an apiserver that restarts: the next try may succeed
			fault = err
		case d.Generation > generation:
			return fmt.Errorf("device %s: somebody else has changed it meanwhile: frond device get %s shows it", id, name)
		case d.Generation == generation: // an older one is a cache of the apiserver's
			last, fault = &d, nil
			if done, err := outcome(last); done {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			away := last != nil && last.AwaySince == nil && gatewayAway(ctx, client, last.Node)
			return unfinished(id, last, away, fault)
		case <-ticker.C:
		}
	}
}

// readWithin is read with a time limit of its own.
func readWithin(ctx context.Context, client dynamic.Interface, namespace, name string) (deviceview.Device, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeflags.Timeout)
	defer cancel()
	return read(ctx, client, namespace, name)
}

// outcome reports whether it is decided what becomes of the desired values, and the error if they are rejected.
func outcome(d *deviceview.Device) (done bool, err error) {
	if c := d.Condition(devices.ConditionAccepted); c != nil && c.Status == metav1.ConditionFalse {
		return true, &cli.ExitError{Code: exitRejected, Message: fmt.Sprintf("rejected: device %s/%s: %s", d.Namespace, d.Name, c.Message)}
	}
	c := d.Condition(devices.ConditionApplied)
	return c != nil && c.Status == metav1.ConditionTrue, nil
}

// unfinished says what holds a device back when the time is over.
func unfinished(id string, d *deviceview.Device, away bool, fault error) error {
	code, why := exitTimeOver, "the cluster did not answer"
	switch {
	case away:
		code, why = exitAway, "its gateway "+d.Node+" is away"
	case d != nil:
		code, why = holdsBack(d)
	case fault != nil:
		why += ": " + fault.Error()
	}
	return &cli.ExitError{Code: code, Message: fmt.Sprintf("device %s does not report its desired values yet: %s. They stay desired", id, why)}
}

// nodeTimeout bounds the question for the Node when the time is over.
const nodeTimeout = 5 * time.Second

// gatewayAway asks the Node: the DeviceStatus of a device that has never told a state does not say it. It is false where the user may not read Nodes.
func gatewayAway(ctx context.Context, client dynamic.Interface, name string) bool {
	if name == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	o, err := client.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	var node corev1.Node
	if decode(o, &node) != nil {
		return false
	}
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == names.ConditionConnected && c.Status != corev1.ConditionTrue
	})
}

// holdsBack returns why a device does not have its desired values, with the exit code.
func holdsBack(d *deviceview.Device) (code int, why string) {
	delivered, applied := d.Condition(devices.ConditionDelivered), d.Condition(devices.ConditionApplied)
	switch {
	case d.Node == "":
		return exitAway, "its Device names no node"
	case d.HeldBy != "":
		return exitAway, "gateway " + d.HeldBy + " has not confirmed that it has removed it"
	case d.AwaySince != nil:
		return exitAway, "its gateway " + d.Node + " is away"
	case delivered != nil && delivered.Status == metav1.ConditionFalse && delivered.Reason == devices.ReasonMapperRefused:
		return exitRejected, "its mapper refuses it: " + delivered.Message
	case slices.Contains([]string{"offline", "disconnected", "unknown"}, d.State):
		return exitAway, "the device is " + d.State
	case delivered != nil && delivered.Status == metav1.ConditionFalse:
		return exitAway, "its mapper does not have it: " + delivered.Message
	case applied == nil:
		return exitTimeOver, "its gateway " + d.Node + " has not reported since the change"
	}
	return exitTimeOver, applied.Message
}

package devices

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/devicetwin/dmi/mapper"
	"github.com/frond-edge/frond/devicetwin/dmi/peer"
	"github.com/frond-edge/frond/leaf/store"
)

// authorizer decides which pod may serve the devices of a protocol. It implements dmi.Authorizer.
type authorizer struct {
	store *store.Store
	// allowed lists who may serve each protocol; empty: each pod of this gateway that mounts the folder of the sockets.
	allowed []config.Mapper
}

// Authorize implements dmi.Authorizer. A process outside pods is let in by dmi.Config.AllowHost before it is asked for.
func (a authorizer) Authorize(_ context.Context, p peer.Peer, protocol string) error {
	if p.Pod == "" {
		return nil
	}
	pod, err := a.podOf(p.Pod)
	if err != nil {
		return err
	}
	if len(a.allowed) == 0 {
		return nil
	}
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	for _, m := range a.allowed {
		if m.Protocol == protocol && m.Namespace == pod.Namespace && (m.ServiceAccount == "" || m.ServiceAccount == account) {
			return nil
		}
	}
	return fmt.Errorf("devices.dmi.mappers of this gateway does not name pod %s/%s (service account %s) for protocol %q", pod.Namespace, pod.Name, account, protocol)
}

// podOf returns a pod of this gateway.
func (a authorizer) podOf(uid types.UID) (*corev1.Pod, error) {
	entries, _ := a.store.List("", "pods", "")
	for _, entry := range entries {
		if entry.UID != string(uid) {
			continue
		}
		pod := &corev1.Pod{}
		if err := json.Unmarshal(entry.Object, pod); err != nil {
			return nil, fmt.Errorf("read pod %s: %w", entry.Key.Human(), err)
		}
		return pod, nil
	}
	return nil, fmt.Errorf("the gateway has no pod with UID %s", uid)
}

// deliveries makes conditions of what mappers have. It implements mapper.DeliverySink.
type deliveries struct {
	log  *zap.Logger
	wake chan struct{} // has room for one token

	mu  sync.Mutex
	due map[types.NamespacedName]mapper.Delivery // guarded by mu
}

func newDeliveries(log *zap.Logger) *deliveries {
	return &deliveries{log: log, wake: make(chan struct{}, 1), due: map[types.NamespacedName]mapper.Delivery{}}
}

// SetDelivery implements mapper.DeliverySink.
func (d *deliveries) SetDelivery(id types.NamespacedName, delivery mapper.Delivery) {
	d.mu.Lock()
	d.due[id] = delivery
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *deliveries) take() map[types.NamespacedName]mapper.Delivery {
	d.mu.Lock()
	defer d.mu.Unlock()
	due := d.due
	d.due = map[types.NamespacedName]mapper.Delivery{}
	return due
}

// start sets the conditions at a server until ctx ends. One that cannot be stored is tried again with the next.
func (d *deliveries) start(ctx context.Context, server *broker.Server) {
	retry := time.Duration(0)
	for ctx.Err() == nil {
		var again <-chan time.Time
		if retry > 0 {
			again = time.After(retry)
		}
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-again:
		}
		retry = 0
		for id, delivery := range d.take() {
			if err := server.SetCondition(ctx, id, conditionOf(delivery)); err != nil && ctx.Err() == nil {
				d.log.Warn("condition of a device not stored, trying again", zap.Stringer("device", id), zap.Error(err))
				d.mu.Lock()
				if _, newer := d.due[id]; !newer {
					d.due[id] = delivery
				}
				d.mu.Unlock()
				retry = time.Second
			}
		}
	}
}

// conditionOf returns the condition Delivered.
func conditionOf(d mapper.Delivery) devicetwin.Condition {
	c := devicetwin.Condition{Type: devices.ConditionDelivered, Status: metav1.ConditionFalse, Reason: d.Reason, Message: d.Message, Generation: d.Generation}
	if d.Reason == mapper.ReasonDelivered {
		c.Status = metav1.ConditionTrue
		if c.Message == "" {
			c.Message = "the mapper has the Device"
		}
	}
	notes := make([]string, 0, len(d.Notes))
	for _, note := range d.Notes {
		notes = append(notes, note.Message)
	}
	if len(notes) > 0 {
		c.Message = strings.Join(append([]string{c.Message}, notes...), "; ")
	}
	const most = 1024 // a condition is for people
	if len(c.Message) > most {
		c.Message = strings.ToValidUTF8(c.Message[:most], "")
	}
	return c
}

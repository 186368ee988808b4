package mapper

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

// execute makes a call and notes what became of it. It reports whether the mapper can take further ones.
func (m *mapper) execute(ctx context.Context, link *link, epoch int, s step) bool {
	err := m.call(ctx, link, epoch, s)
	if ctx.Err() != nil {
		return false // what is stored says that the call may have been made
	}
	o := outcomeOf(err)
	m.calls.WithLabelValues(s.action.String(), o.String()).Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	if epoch != m.epoch {
		return false
	}
	if o == broken {
		m.silent = s.want.model
	}
	if o != done {
		m.log.Warn("mapper did not take a device", zap.String("device", s.id.String()), zap.Stringer("action", s.action), zap.Error(err))
	}
	if e := m.entries[s.id]; e != nil {
		e.record(s.action, &s.want, o, err, time.Now())
	}
	return o != broken
}

// call makes one call, and before it that of the model if the mapper may not have it.
func (m *mapper) call(ctx context.Context, link *link, epoch int, s step) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.CallTimeout)
	defer cancel()
	if s.action == remove {
		_, err := link.client.RemoveDevice(ctx, &dmipb.RemoveDeviceRequest{DeviceName: s.id.Name, DeviceNamespace: s.id.Namespace})
		return err
	}
	if err := m.sendModel(ctx, link, epoch, s.want.model); err != nil {
		return fmt.Errorf("its model: %w", err)
	}
	_, err := link.client.UpdateDevice(ctx, &dmipb.UpdateDeviceRequest{Device: s.want.device})
	return err
}

func (m *mapper) sendModel(ctx context.Context, link *link, epoch int, model *dmipb.DeviceModel) error {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(model)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	id, sum := types.NamespacedName{Namespace: model.GetNamespace(), Name: model.GetName()}, sha256.Sum256(raw)
	m.mu.Lock()
	had := m.models[id] == sum
	m.mu.Unlock()
	if had {
		return nil
	}
	if _, err := link.client.CreateDeviceModel(ctx, &dmipb.CreateDeviceModelRequest{Model: model}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if epoch == m.epoch {
		m.models[id] = sum
	}
	return nil
}

// outcomeOf tells an answer of the mapper from none.
func outcomeOf(err error) outcome {
	switch status.Code(err) {
	case codes.OK:
		return done
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal: // Internal: what came back is not gRPC
		return broken
	default:
		return refused
	}
}

// removeModels removes the models that no device of the mapper has. That ends no mapper, so a failure is of no interest.
func (m *mapper) removeModels(ctx context.Context, link *link, epoch int) {
	m.mu.Lock()
	used := map[types.NamespacedName]bool{}
	for _, e := range m.entries {
		for _, model := range []*dmipb.DeviceModel{e.model, e.wantedModel()} {
			used[types.NamespacedName{Namespace: model.GetNamespace(), Name: model.GetName()}] = true
		}
	}
	var unused []types.NamespacedName
	for id := range m.models {
		if !used[id] && epoch == m.epoch {
			unused = append(unused, id)
			delete(m.models, id)
		}
	}
	m.mu.Unlock()
	for _, id := range unused {
		callCtx, cancel := context.WithTimeout(ctx, m.cfg.CallTimeout)
		_, err := link.client.RemoveDeviceModel(callCtx, &dmipb.RemoveDeviceModelRequest{ModelName: id.Name, ModelNamespace: id.Namespace})
		cancel()
		if err != nil {
			m.log.Warn("mapper did not remove a model", zap.String("model", id.String()), zap.Error(err))
			return
		}
	}
}

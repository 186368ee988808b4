package deviceload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/loadtest/poll"
	"github.com/frond-edge/frond/loadtest/procfs"
	"github.com/frond-edge/frond/loadtest/results"
	"github.com/frond-edge/frond/loadtest/workload"
)

const mb = 1e6

// MeasureMemoryOff records the memory of a gateway whose devices are off.
func MeasureMemoryOff(ctx context.Context, l *Load) error {
	_, err := recordMemory(ctx, l, "edgecore, devices off", l.edge)
	return err
}

// MeasureMemory records the memory of a gateway without clients and Devices, with more and more clients, and with Devices; of the hub and of the
// cloudcores without and with Devices.
func MeasureMemory(ctx context.Context, l *Load) error {
	if len(l.size.Held) == 0 || l.size.Known == 0 {
		return nil
	}
	if err := admitClients(ctx, l, slices.Max(l.size.Held)); err != nil {
		return err
	}
	idle, err := recordMemory(ctx, l, "edgecore, no MQTT client, no device", l.edge)
	if err != nil {
		return err
	}
	if err := recordCloudMemory(ctx, l, "no device"); err != nil {
		return err
	}
	for _, clients := range l.size.Held {
		if err := measureClients(ctx, l, clients, idle); err != nil {
			return err
		}
	}
	return measureKnown(ctx, l)
}

// spareClients are more than the clients of a scenario that a broker admits.
const spareClients = 56

// admitClients lets the gateway's broker admit so many clients, and starts edgecore again. The file is rewritten when the cluster starts again.
func admitClients(ctx context.Context, l *Load, n int) error {
	file := filepath.Join(l.cluster.Dir(), l.edge, "edgecore.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read configuration of %s: %w", l.edge, err)
	}
	var cfg map[string]any
	if err := yaml.Unmarshal(text, &cfg); err != nil {
		return fmt.Errorf("read configuration of %s: %w", l.edge, err)
	}
	if err := unstructured.SetNestedField(cfg, float64(n+spareClients), "devices", "mqtt", "maxClients"); err != nil {
		return fmt.Errorf("change configuration of %s: %w", l.edge, err)
	}
	if text, err = yaml.Marshal(cfg); err != nil {
		return fmt.Errorf("change configuration of %s: %w", l.edge, err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("write configuration of %s: %w", l.edge, err)
	}
	return errors.Join(l.cluster.Kill(ctx, l.edge), l.cluster.Start(ctx, l.edge))
}

// measureClients connects clients, each with one subscription, and records what they take.
func measureClients(ctx context.Context, l *Load, n int, idle float64) error {
	began := time.Now()
	list, err := connectPumps(ctx, l, workload.Names("held", n))
	defer closePumps(list)
	if err != nil {
		return err
	}
	took := results.Milliseconds(time.Since(began))
	anonymous, err := recordMemory(ctx, l, fmt.Sprintf("edgecore, %d MQTT clients, no device", n), l.edge)
	if err != nil {
		return err
	}
	more := results.Measure{Text: fmt.Sprintf("  RssAnon more than without the %d clients", n), Unit: results.Memory}
	connected := results.Measure{Text: fmt.Sprintf("  the last of %d connected and subscribed after", n), Unit: results.Time}
	if n == aimClients {
		more.Aim, connected.Aim = 40, 1500
	}
	l.recorder.Record(more, (anonymous-idle)/mb)
	l.recorder.Record(connected, took)
	return nil
}

// aimClients is the number of clients for which there is an aim.
const aimClients = 1000

// measureKnown records the memory with Devices that nobody serves.
func measureKnown(ctx context.Context, l *Load) (err error) {
	defer func() { err = errors.Join(err, l.api.deleteDevices(ctx)) }()
	if err := l.api.createPumps(ctx, workload.Names("known", l.size.Known)); err != nil {
		return err
	}
	err = poll.Until(ctx, "the gateway has all Devices", func(ctx context.Context) (bool, error) {
		held, err := l.cluster.Store(ctx, l.edge)
		if err != nil {
			return false, err
		}
		n := 0
		for _, object := range held.Objects {
			if object.Resource == "devices" {
				n++
			}
		}
		return n >= l.size.Known, nil
	})
	if err != nil {
		return err
	}
	if _, err := recordMemory(ctx, l, fmt.Sprintf("edgecore, no MQTT client, %d devices", l.size.Known), l.edge); err != nil {
		return err
	}
	return recordCloudMemory(ctx, l, fmt.Sprintf("%d devices", l.size.Known))
}

func recordCloudMemory(ctx context.Context, l *Load, state string) error {
	spec := l.cluster.Spec()
	if _, err := recordMemory(ctx, l, "each cloudcore, "+state, folder.Names("cloudcore", spec.Cloudcores)...); err != nil {
		return err
	}
	_, err := recordMemory(ctx, l, "each hub server, "+state, folder.Names("hub", spec.Hubs)...)
	return err
}

// recordMemory samples components once a second, after a pause, and returns the mean of their anonymous bytes.
func recordMemory(ctx context.Context, l *Load, text string, parts ...string) (anonymous float64, err error) {
	if err := poll.Sleep(ctx, l.size.Settle); err != nil {
		return 0, err
	}
	for i := range l.size.Samples {
		if err := poll.Sleep(ctx, time.Duration(min(i, 1))*time.Second); err != nil {
			return 0, err
		}
		for _, part := range parts {
			now, err := procfs.ReadMemory(l.cluster.PID(part))
			if err != nil {
				return 0, fmt.Errorf("memory of %s: %w", part, err)
			}
			l.recorder.Record(results.Measure{Text: text + ": RSS", Unit: results.Memory}, now.RSS/mb)
			l.recorder.Record(results.Measure{Text: text + ": RssAnon", Unit: results.Memory}, now.Anonymous/mb)
			anonymous += now.Anonymous / float64(l.size.Samples*len(parts))
		}
	}
	return anonymous, nil
}

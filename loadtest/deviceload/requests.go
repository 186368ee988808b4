package deviceload

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/loadtest/poll"
)

// writes returns the verbs of writes, as the apiserver's metrics have them.
func writes() []string {
	return []string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}
}

// statusPause is longer than the pause between two statuses of a device.
const statusPause = 1500 * time.Millisecond

// request is a kind of requests to the apiserver.
type request struct{ verb, resource string }

// readRequests returns how many writes of devices and their statuses the apiserver has served.
func (a deviceAPI) readRequests(ctx context.Context) (map[request]float64, error) {
	text, err := a.kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the apiserver's metrics: %w", err)
	}
	return parseRequests(text)
}

func parseRequests(text []byte) (map[request]float64, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("the apiserver's metrics: %w", err)
	}
	counts := map[request]float64{}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		labels := map[string]string{}
		for _, label := range m.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		of := request{labels["verb"], labels["resource"]}
		if labels["group"] == devices.Group && slices.Contains(writes(), of.verb) && slices.Contains([]string{devices.DevicesResource, devices.DeviceStatusesResource}, of.resource) {
			counts[of] += m.GetCounter().GetValue()
		}
	}
	return counts, nil
}

// settledRequests is readRequests when nothing is written any more.
func (a deviceAPI) settledRequests(ctx context.Context) (now map[request]float64, err error) {
	var last map[request]float64
	err = poll.Until(ctx, "no status is written any more", func(ctx context.Context) (same bool, err error) {
		if err := poll.Sleep(ctx, statusPause); err != nil {
			return false, err
		}
		if now, err = a.readRequests(ctx); err != nil {
			return false, err
		}
		same, last = last != nil && maps.Equal(now, last), now
		return same, nil
	})
	return now, err
}

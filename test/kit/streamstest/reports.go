package streamstest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/consume"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
)

// ReportOf returns a report of a ConfigMap with a value.
func ReportOf(name, value string) wire.Message {
	return wire.Message{Key: ConfigMapKey(name), Op: wire.Apply, UID: "u", Object: fmt.Appendf(nil, `{"s":%q}`, value)}
}

// LastObject returns the content of the last report of a name.
func (a *ReportRecorder) LastObject(name string) string {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	list := a.Messages[ConfigMapKey(name)]
	if len(list) == 0 {
		return ""
	}
	return string(list[len(list)-1].Object)
}

// RecordReport is a consume.ReportHandler.
func (a *ReportRecorder) RecordReport(_ context.Context, m wire.Message) error {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if err := a.Err; err != nil {
		a.Err = nil
		return err
	}
	a.Messages[m.Key] = append(a.Messages[m.Key], m)
	return nil
}

// ReportRecorder records the reports that a handler received.
type ReportRecorder struct {
	Mu       sync.Mutex
	Messages map[wire.Key][]wire.Message // guarded by mu
	Err      error                       // guarded by mu; returned once
}

// StartReports runs a ReportConsumer.
func StartReports(t *testing.T, nc *nats.Conn, handle consume.ReportHandler, gaveUp func(wire.Message)) (*prometheus.Registry, func()) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reports, err := consume.NewReportConsumer(subject.Report, nc, handle, gaveUp, metrics.New(reg), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	return reg, StartPart(t, reports.Start)
}

// PutReports stores reports of a node as its pump would.
func PutReports(t *testing.T, nc *nats.Conn, node string, first, number int) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	var acks []jetstream.PubAckFuture
	for i := range number {
		ack, err := js.PublishMsgAsync(&nats.Msg{
			Subject: subject.Of(subject.Report, node, ConfigMapKey(fmt.Sprint("o", first+i))), Data: []byte(`{}`),
			Header: nats.Header{"Frond-Version": {"1"}, "Frond-Op": {"apply"}, "Frond-Time": {time.Now().Format(time.RFC3339Nano)}},
		}, jetstream.WithStallWait(time.Minute)) // a busy machine's disk takes longer than the client's 200 ms
		if err != nil {
			t.Fatal(err)
		}
		acks = append(acks, ack)
	}
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			t.Fatal(err)
		case <-t.Context().Done():
			t.Fatal("not stored in time")
		}
	}
}

// PodReport returns a report of a pod.
func PodReport(name string) wire.Message {
	return wire.Message{
		Key: wire.Key{Resource: "pods", Namespace: "default", Name: name}, Op: wire.Apply, UID: "u", Object: []byte(`{"metadata":{}}`),
	}
}

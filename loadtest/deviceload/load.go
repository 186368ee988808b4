// Package deviceload measures the devices of one gateway: samples by MQTT and what becomes of them, memory by clients and by devices, requests to the
// apiserver, the way of a desired value to a client and to a mapper, and how soon a mapper is served after a crash of edgecore.
//
// It is the devices, with real MQTT connections, and it runs the mapper of test/mapper. Each sample has its number as value and its number in
// milliseconds as its device's time, so that the hub's stream proves what became of it: a sample that is missing, twice, out of order or has another
// time is an error that wraps ErrLost, whatever the rates are.
package deviceload

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/loadtest/acks"
	"github.com/frond-edge/frond/loadtest/results"
	"github.com/frond-edge/frond/loadtest/workload"
)

// ErrLost says that the hub's stream has not each sample that was acked, once, in order and with its time.
var ErrLost = errors.New("samples are not in the hub as they were sent")

// Size is the amount of work. What is 0 or empty is not measured.
type Size struct {
	Clients  int           // MQTT clients that send values, each of a Device of its own
	Fast     time.Duration // of values as fast as they are acked
	Rates    []int         // values a second that are sent for Steady each; the first also shows the requests to the apiserver
	Steady   time.Duration
	Backfill int   // values sent while the link is cut
	Held     []int // MQTT clients that are connected while memory is read, ascending
	Known    int   // Devices of the gateway while memory is read
	Desired  int   // changes of desired values
	Motors   int   // Devices that the mapper drives
	Restarts int   // of edgecore
	// Settle is the time before memory is read, Samples how often it is.
	Settle  time.Duration
	Samples int
}

// Full is the size of the runs in docs/operations/numbers.md.
func Full() Size {
	return Size{
		Clients: 200, Fast: 15 * time.Second, Rates: []int{1000, 2000, 4000}, Steady: 15 * time.Second, Backfill: 60_000, Held: []int{100, 1000}, Known: 1000,
		Desired: 100, Motors: 10, Restarts: 5, Settle: 20 * time.Second, Samples: 5,
	}
}

// Short proves that everything works; its numbers mean nothing.
func Short() Size {
	return Size{
		Clients: 10, Fast: time.Second / 2, Rates: []int{200}, Steady: time.Second / 2, Backfill: 300, Held: []int{10}, Known: 20,
		Desired: 2, Motors: 2, Restarts: 1, Samples: 1,
	}
}

// Load measures one gateway of a cluster. The Measure functions are scenarios, and each removes what it has made.
type Load struct {
	cluster  *devcluster.Cluster
	api      deviceAPI
	hub      hubStream
	objects  *workload.Client
	acks     *acks.Log
	recorder *results.Recorder
	edge     string
	size     Size
	// base is the device time of number 0.
	base time.Time
}

// Environment is the running cluster that a Load measures.
type Environment struct {
	Cluster  *devcluster.Cluster
	Config   *rest.Config
	Kube     kubernetes.Interface
	NATS     *nats.Conn
	Objects  *workload.Client
	Acks     *acks.Log
	Recorder *results.Recorder
	Edge     string
}

// New returns a Load that has done nothing yet.
func New(e Environment, size Size) (*Load, error) {
	api, err := dynamic.NewForConfig(e.Config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	js, err := jetstream.New(e.NATS)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return &Load{
		cluster: e.Cluster, api: deviceAPI{api, e.Kube, e.Edge}, hub: hubStream{js, e.Edge}, objects: e.Objects, acks: e.Acks, recorder: e.Recorder, edge: e.Edge, size: size,
		base: time.Now().Truncate(time.Millisecond),
	}, nil
}

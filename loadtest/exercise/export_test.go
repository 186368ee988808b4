package exercise

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/loadtest/measure"
	"github.com/frond-edge/frond/loadtest/plan"
	"github.com/frond-edge/frond/loadtest/swarm"
	"github.com/frond-edge/frond/loadtest/swarm/memstore"
)

// JudgePhase judges a phase.
func JudgePhase(limits plan.Limits, result Result) []Judgement { return judgePhase(limits, result) }

// ComparePods compares the pods of a node with those of its store.
func ComparePods(want map[wire.Key]corev1.Pod, have map[wire.Key]memstore.Object) (lost, resurrected []string) {
	var a audit
	a.comparePods("node", want, have)
	return a.lost, a.resurrected
}

// Describe describes objects in a judgement.
func Describe(objects []string) string { return describe(objects) }

// CarryOut carries out a phase of a swarm without gateways, and restores what it has killed.
func (r *Runner) CarryOut(ctx context.Context, phase plan.Phase) error {
	r.swarm = &swarm.Swarm{}
	if err := r.finish(ctx, 1, phase, time.Now(), measure.NewHistogram(time.Now())); err != nil {
		return err
	}
	return restore(ctx, phase)
}

// BeginMove begins to track a move of the endpoint of a Service at a gateway, and returns the endpoint's new address.
func (r *Runner) BeginMove(node, service string, sequence int64, into *measure.Histogram) (address string) {
	r.tracker.Begin(sliceObject(node, service), sequence, time.Now(), into)
	return endpointAddress(sequence)
}

// Progress returns how many messages were stored, and how many operations have not ended.
func (r *Runner) Progress() (messages int64, outstanding int) {
	return r.messages.Load(), r.tracker.Outstanding()
}

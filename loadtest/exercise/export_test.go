package exercise

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/loadtest/plan"
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

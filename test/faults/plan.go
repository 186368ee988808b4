package faults

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// Kind is the kind of a fault.
type Kind string

// The kinds. Those of links and disks have a gateway as their target, the others any process.
const (
	Kill      Kind = "kill"     // SIGKILL, started again at the end
	Pause     Kind = "pause"    // SIGSTOP, and SIGCONT at the end
	SilentCut Kind = "silent"   // every packet is lost
	LoudCut   Kind = "loud"     // every connection is reset
	CutUp     Kind = "cut-up"   // the gateway's packets are lost
	CutDown   Kind = "cut-down" // the packets to the gateway are lost
	Reset     Kind = "reset"    // open connections are reset, once
	Slow      Kind = "slow"     // see Fault.Shape
	Wipe      Kind = "wipe"     // killed, its disk emptied, started again at the end
	DiskFull  Kind = "full"     // its disk is full
	Clone     Kind = "clone"    // restarted, while a second agent runs on a copy of its disk; the copy ends, and it is restarted again
	PowerLoss Kind = "power"    // power cut: killed, and at the next start its store has only what was synced

	// maxFaultTime bounds the duration of a fault; it is longer than the detection of a dead peer takes.
	maxFaultTime = 6 * time.Second
)

// Fault is one fault of one target within a round.
type Fault struct {
	Kind   Kind
	Target string
	// At is the begin of the fault and Duration its length. Both count from the begin of the round, and the fault ends within it.
	At, Duration time.Duration
	// Shape is the shape of the link during a Slow fault.
	Shape wan.Shape
}

func (f Fault) String() string {
	s := fmt.Sprintf("%s %s at %.1fs for %.1fs", f.Kind, f.Target, f.At.Seconds(), f.Duration.Seconds())
	if f.Kind == Slow {
		s += fmt.Sprintf(" (%+v)", f.Shape)
	}
	return s
}

// Targets are the targets of a plan.
type Targets struct {
	// Edges are the gateways. SmallDisks are those whose disk can be filled, PowercutDisks those whose power can be cut.
	Edges, SmallDisks, PowercutDisks []string
	// Processes are the other processes.
	Processes []string
	// Groups are sets of processes that may fail together, such as the servers of the hub; each process is in one of them at most.
	Groups [][]string
}

// Random returns the source of one round: the same seed and number give the same values, independent of other rounds.
func Random(seed, round uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, round)) }

// Length returns how long the faults of a round last: usually short, so that there can be many rounds, and in one of five
// longer than any detection of a dead peer takes.
func Length(random *rand.Rand) time.Duration {
	if random.IntN(5) == 0 {
		return 9 * time.Second
	}
	return 4 * time.Second
}

// Plan returns the faults of a round, ordered by their begin: one to four different targets.
func Plan(random *rand.Rand, rig Targets, length time.Duration) []Fault {
	targets := slices.Concat(rig.Edges, rig.Edges, rig.Processes) // a gateway is as likely as two other processes: it has more ways to fail
	random.Shuffle(len(targets), func(i, k int) { targets[i], targets[k] = targets[k], targets[i] })
	var plan []Fault
	taken := map[string]bool{}
	for _, target := range targets[:1+random.IntN(4)] {
		if taken[target] {
			continue
		}
		taken[target] = true
		f := Fault{Target: target, Kind: faultKinds(rig, target)[random.IntN(len(faultKinds(rig, target)))]}
		f.Duration = time.Second/2 + time.Duration(random.Int64N(int64(min(maxFaultTime, length/2))))
		f.At = time.Duration(random.Int64N(int64(length - f.Duration)))
		if f.Kind == Slow {
			f.Shape = linkShapes()[random.IntN(len(linkShapes()))]
		}
		f.At, f.Duration = f.At.Round(100*time.Millisecond), f.Duration.Round(100*time.Millisecond)
		plan = append(plan, f)
		if random.IntN(3) == 0 { // the fault hits the whole group of the target
			plan = append(plan, groupFaults(rig, f, taken)...)
		}
	}
	slices.SortFunc(plan, func(a, b Fault) int { return cmp.Or(cmp.Compare(a.At, b.At), strings.Compare(a.Target, b.Target)) })
	return plan
}

// groupFaults returns the same fault for the rest of the target's group.
func groupFaults(rig Targets, f Fault, taken map[string]bool) []Fault {
	var plan []Fault
	for _, group := range rig.Groups {
		if !slices.Contains(group, f.Target) {
			continue
		}
		for _, other := range group {
			if !taken[other] {
				taken[other] = true
				f.Target = other
				plan = append(plan, f)
			}
		}
	}
	return plan
}

func faultKinds(rig Targets, target string) []Kind {
	if !slices.Contains(rig.Edges, target) {
		return []Kind{Kill, Kill, Pause}
	}
	all := []Kind{Kill, Kill, Kill, Pause, SilentCut, LoudCut, CutUp, CutDown, Reset, Slow, Slow, Wipe, Clone}
	if slices.Contains(rig.SmallDisks, target) {
		all = append(all, DiskFull, DiskFull, DiskFull)
	}
	if slices.Contains(rig.PowercutDisks, target) {
		all = append(all, PowerLoss, PowerLoss, PowerLoss)
	}
	return all
}

// linkShapes are the bad links: a satellite, a modem, a crowded radio, and a milder mix.
func linkShapes() []wan.Shape {
	return []wan.Shape{
		{Delay: 300 * time.Millisecond},
		{Rate: 50_000 / 8},
		{Loss: 30},
		{Delay: 100 * time.Millisecond, Rate: 200_000 / 8, Loss: 10},
	}
}

// Step is the begin or the end of a fault in a round.
type Step struct {
	At    time.Duration
	Fault Fault
	Ends  bool
}

// Steps returns the steps of a plan in order.
func Steps(plan []Fault) []Step {
	var steps []Step
	for _, f := range plan {
		steps = append(steps, Step{At: f.At, Fault: f}, Step{At: f.At + f.Duration, Fault: f, Ends: true})
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	return steps
}

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

// Kind is what is done to a target.
type Kind string

// The kinds. Those of links and disks have a gateway as their target, the others any process.
const (
	Kill      Kind = "kill"     // SIGKILL, started again at the end
	Pause     Kind = "pause"    // SIGSTOP, and SIGCONT at the end
	SilentCut Kind = "silent"   // every packet is lost
	LoudCut   Kind = "loud"     // every connection is reset
	CutUp     Kind = "cut-up"   // what the gateway sends is lost
	CutDown   Kind = "cut-down" // what the gateway should hear is lost
	Reset     Kind = "reset"    // open connections are reset, once
	Slow      Kind = "slow"     // see Fault.Shape
	Wipe      Kind = "wipe"     // killed, its disk emptied, started again at the end
	DiskFull  Kind = "full"     // its disk is full
	Clone     Kind = "clone"    // restarted, while a second agent runs on a copy of its disk; the copy ends, and it is restarted again
	PowerLoss Kind = "power"    // it loses its power: killed, and of its store only what was synced is there when it starts again

	// maxFaultTime is how long a fault lasts at most: longer than it takes to notice a dead peer.
	maxFaultTime = 6 * time.Second
)

// Fault is done to one target for some time, within a round.
type Fault struct {
	Kind   Kind
	Target string
	// At is when it begins, For how long it lasts; both count from the round's begin and end within it.
	At, Duration time.Duration
	// Shape is how slow a link becomes.
	Shape wan.Shape
}

func (f Fault) String() string {
	s := fmt.Sprintf("%s %s at %.1fs for %.1fs", f.Kind, f.Target, f.At.Seconds(), f.Duration.Seconds())
	if f.Kind == Slow {
		s += fmt.Sprintf(" (%+v)", f.Shape)
	}
	return s
}

// Targets is what a plan may break.
type Targets struct {
	// Edges are the gateways; SmallDisks are those of them whose disk can be filled, and Sockets those whose power can be cut.
	Edges, SmallDisks, PowercutDisks []string
	// Processes are the other processes.
	Processes []string
	// Groups are parts that may fail all at once, such as the servers of the hub; each part is in one of them at most.
	Groups [][]string
}

// Random returns the source of one round: the same seed and number give the same values, whatever other rounds did.
func Random(seed, round uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, round)) }

// Length is how long the faults of a round are played: short as a rule, so that there can be many rounds, and now and then
// longer than anything needs to notice a dead peer.
func Length(random *rand.Rand) time.Duration {
	if random.IntN(5) == 0 {
		return 9 * time.Second
	}
	return 4 * time.Second
}

// Plan returns what happens in a round, by the time it begins: one to four faults of different targets.
func Plan(random *rand.Rand, rig Targets, length time.Duration) []Fault {
	targets := slices.Concat(rig.Edges, rig.Edges, rig.Processes) // a gateway is as likely as two other parts: it has more ways to fail
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
		if random.IntN(3) == 0 { // then it befalls all of its kind
			plan = append(plan, groupFaults(rig, f, taken)...)
		}
	}
	slices.SortFunc(plan, func(a, b Fault) int { return cmp.Or(cmp.Compare(a.At, b.At), strings.Compare(a.Target, b.Target)) })
	return plan
}

// groupFaults are the same fault for the rest of the target's group.
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

// linkShapes are the bad links: a satellite, a modem, a crowded radio, and all of it in milder form.
func linkShapes() []wan.Shape {
	return []wan.Shape{
		{Delay: 300 * time.Millisecond},
		{Rate: 50_000 / 8},
		{Loss: 30},
		{Delay: 100 * time.Millisecond, Rate: 200_000 / 8, Loss: 10},
	}
}

// Step is a moment of a round: a fault begins or ends.
type Step struct {
	At    time.Duration
	Fault Fault
	Ends  bool
}

// Steps returns the moments of a plan in their order.
func Steps(plan []Fault) []Step {
	var steps []Step
	for _, f := range plan {
		steps = append(steps, Step{At: f.At, Fault: f}, Step{At: f.At + f.Duration, Fault: f, Ends: true})
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	return steps
}

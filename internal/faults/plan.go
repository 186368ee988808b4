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
	Kill   Kind = "kill"     // SIGKILL, started again at the end
	Pause  Kind = "pause"    // SIGSTOP, and SIGCONT at the end
	Silent Kind = "silent"   // every packet is lost
	Loud   Kind = "loud"     // every connection is reset
	OnlyUp Kind = "cut-up"   // what the gateway sends is lost
	OnlyDn Kind = "cut-down" // what the gateway should hear is lost
	Reset  Kind = "reset"    // open connections are reset, once
	Slow   Kind = "slow"     // see Fault.Shape
	Wipe   Kind = "wipe"     // killed, its disk emptied, started again at the end
	Full   Kind = "full"     // its disk is full
	Clone  Kind = "clone"    // restarted, while a second agent runs on a copy of its disk; the copy ends, and it is restarted again
	Power  Kind = "power"    // it loses its power: killed, and of its store only what was synced is there when it starts again

	// longest is how long a fault lasts at most: longer than it takes to notice a dead peer.
	longest = 6 * time.Second
)

// Fault is done to one target for some time, within a round.
type Fault struct {
	Kind   Kind
	Target string
	// At is when it begins, For how long it lasts; both count from the round's begin and end within it.
	At, For time.Duration
	// Shape is how slow a link becomes.
	Shape wan.Shape
}

func (f Fault) String() string {
	s := fmt.Sprintf("%s %s at %.1fs for %.1fs", f.Kind, f.Target, f.At.Seconds(), f.For.Seconds())
	if f.Kind == Slow {
		s += fmt.Sprintf(" (%+v)", f.Shape)
	}
	return s
}

// Rig is what a plan may break.
type Rig struct {
	// Edges are the gateways; SmallDisks are those of them whose disk can be filled, and Sockets those whose power can be cut.
	Edges, SmallDisks, Sockets []string
	// Parts are the other processes.
	Parts []string
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
func Plan(random *rand.Rand, rig Rig, length time.Duration) []Fault {
	targets := slices.Concat(rig.Edges, rig.Edges, rig.Parts) // a gateway is as likely as two other parts: it has more ways to fail
	random.Shuffle(len(targets), func(i, k int) { targets[i], targets[k] = targets[k], targets[i] })
	var plan []Fault
	taken := map[string]bool{}
	for _, target := range targets[:1+random.IntN(4)] {
		if taken[target] {
			continue
		}
		taken[target] = true
		f := Fault{Target: target, Kind: kinds(rig, target)[random.IntN(len(kinds(rig, target)))]}
		f.For = time.Second/2 + time.Duration(random.Int64N(int64(min(longest, length/2))))
		f.At = time.Duration(random.Int64N(int64(length - f.For)))
		if f.Kind == Slow {
			f.Shape = shapes()[random.IntN(len(shapes()))]
		}
		f.At, f.For = f.At.Round(100*time.Millisecond), f.For.Round(100*time.Millisecond)
		plan = append(plan, f)
		if random.IntN(3) == 0 { // then it befalls all of its kind
			plan = append(plan, companions(rig, f, taken)...)
		}
	}
	slices.SortFunc(plan, func(a, b Fault) int { return cmp.Or(cmp.Compare(a.At, b.At), strings.Compare(a.Target, b.Target)) })
	return plan
}

// companions are the same fault for the rest of the target's group.
func companions(rig Rig, f Fault, taken map[string]bool) []Fault {
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

func kinds(rig Rig, target string) []Kind {
	if !slices.Contains(rig.Edges, target) {
		return []Kind{Kill, Kill, Pause}
	}
	all := []Kind{Kill, Kill, Kill, Pause, Silent, Loud, OnlyUp, OnlyDn, Reset, Slow, Slow, Wipe, Clone}
	if slices.Contains(rig.SmallDisks, target) {
		all = append(all, Full, Full, Full)
	}
	if slices.Contains(rig.Sockets, target) {
		all = append(all, Power, Power, Power)
	}
	return all
}

// shapes are the bad links: a satellite, a modem, a crowded radio, and all of it in milder form.
func shapes() []wan.Shape {
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
		steps = append(steps, Step{At: f.At, Fault: f}, Step{At: f.At + f.For, Fault: f, Ends: true})
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	return steps
}

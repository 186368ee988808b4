package rollout_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/controllers/applications/rollout"
)

// fleet is an application in a simulated fleet: groups take what they are given, if they have a link.
type fleet struct {
	t      *testing.T
	plan   *rollout.Plan
	now    time.Time
	status apps.RolloutStatus
	newest string
	sites  map[string]*site
	paused bool
	yes    string // approval
}

type site struct {
	has                   string
	wanted, ready, online int
	held                  bool
}

func newFleet(t *testing.T, plan string, sites int) *fleet {
	t.Helper()
	f := &fleet{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), newest: "v1", sites: map[string]*site{}}
	for i := range sites {
		f.sites[fmt.Sprintf("s%02d", i)] = &site{wanted: 2, ready: 2, online: 2}
	}
	f.decide() // v1 is everywhere
	f.setPlan(plan)
	f.newest = "v2"
	return f
}

func (f *fleet) setPlan(text string) {
	f.t.Helper()
	plan, err := rollout.ParsePlan(text)
	if err != nil {
		f.t.Fatal(err)
	}
	f.plan = &plan
}

func (f *fleet) request() rollout.Request {
	r := rollout.Request{Plan: f.plan, Newest: f.newest, Status: f.status, Paused: f.paused, Approval: f.yes, Now: f.now}
	for _, name := range slices.Sorted(maps.Keys(f.sites)) {
		s := f.sites[name]
		r.Groups = append(r.Groups, rollout.Group{
			Name: name, Revision: s.has, Wanted: s.wanted, Ready: min(s.ready, s.online), Offline: s.wanted - s.online, Held: s.held,
		})
	}
	return r
}

// decide takes one decision, stores its status as the API does, and lets the sites with a link take what they are given.
func (f *fleet) decide() rollout.Decision {
	f.t.Helper()
	d := rollout.Decide(f.request())
	stored, err := json.Marshal(d.Status)
	if err != nil {
		f.t.Fatal(err)
	}
	f.status = apps.RolloutStatus{}
	if err := json.Unmarshal(stored, &f.status); err != nil {
		f.t.Fatal(err)
	}
	for name, revision := range d.Revisions {
		if s := f.sites[name]; s.online > 0 {
			s.has = revision
		}
	}
	return d
}

// settle decides until nothing changes any more.
func (f *fleet) settle() apps.RolloutStatus {
	f.t.Helper()
	for range 100 {
		before := f.status
		f.decide()
		if cmp.Equal(before, f.status) {
			return f.status
		}
	}
	f.t.Fatalf("the rollout does not settle: %+v", f.status)
	return f.status
}

func (f *fleet) with(revision string) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(f.sites)) {
		if f.sites[name].has == revision {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

func (f *fleet) expect(phase apps.RolloutPhase, step int32, withNewest string) {
	f.t.Helper()
	if s := f.settle(); s.Phase != phase || s.Step != step || f.with(f.newest) != withNewest {
		f.t.Errorf("%s in step %d (%s), %s at [%s]; want %s in step %d, at [%s]", s.Phase, s.Step, s.Message, f.newest, f.with(f.newest), phase, step, withNewest)
	}
}

const canaryPlan = `{"steps":[{"groups":["s03"]},{"percent":50}],"soak":"10m"}`

func TestDecide_StepsSoakAndComplete(t *testing.T) {
	f := newFleet(t, canaryPlan, 4)
	f.expect(apps.RolloutSoaking, 1, "s03")
	f.now = f.now.Add(9 * time.Minute)
	f.expect(apps.RolloutSoaking, 1, "s03")
	f.now = f.now.Add(time.Minute)
	f.expect(apps.RolloutSoaking, 2, "s00 s03")
	f.now = f.now.Add(10 * time.Minute)
	f.expect(apps.RolloutCompleted, 3, "s00 s01 s02 s03")
	if f.status.StableRevision != "v2" || len(f.status.Groups) != 0 {
		t.Errorf("completed: %+v", f.status)
	}
}

func TestDecide_BrokenCanaryHoldsTheRest(t *testing.T) {
	f := newFleet(t, canaryPlan, 4)
	f.sites["s03"].ready = 1
	f.expect(apps.RolloutProgressing, 1, "s03")
	f.now = f.now.Add(24 * time.Hour)
	f.expect(apps.RolloutProgressing, 1, "s03")
	f.sites["s03"].ready = 2
	f.expect(apps.RolloutSoaking, 1, "s03")
	f.now = f.now.Add(5 * time.Minute)
	f.sites["s03"].ready = 0 // the time begins anew
	f.expect(apps.RolloutProgressing, 1, "s03")
	f.sites["s03"].ready = 2
	f.settle()
	f.now = f.now.Add(6 * time.Minute)
	f.expect(apps.RolloutSoaking, 1, "s03")
}

func TestDecide_OfflineGatewaysNeitherHoldNorSatisfy(t *testing.T) {
	f := newFleet(t, `{"steps":[{"groups":["s00","s01"]}]}`, 3)
	f.sites["s00"].online = 0
	f.expect(apps.RolloutCompleted, 2, "s01 s02") // s00 gets it when it is back

	f = newFleet(t, `{"steps":[{"groups":["s00"]}]}`, 2)
	f.sites["s00"].online = 0
	f.expect(apps.RolloutProgressing, 1, "")
	if !strings.Contains(f.status.Message, "no pod is on a node with a link") {
		t.Errorf("message %q", f.status.Message)
	}
	f.yes = rollout.FormatApproval("v2", 1, true)
	f.expect(apps.RolloutCompleted, 2, "s01")
}

func TestDecide_Threshold(t *testing.T) {
	f := newFleet(t, `{"steps":[{"percent":50}],"successThreshold":"75%"}`, 4)
	f.sites["s00"].ready = 1
	f.expect(apps.RolloutCompleted, 3-1, "s00 s01 s02 s03")
	f = newFleet(t, `{"steps":[{"percent":50}],"successThreshold":"76%"}`, 4)
	f.sites["s00"].ready = 1
	f.expect(apps.RolloutProgressing, 1, "s00 s01")
}

func TestDecide_ApprovalAndPause(t *testing.T) {
	f := newFleet(t, `{"steps":[{"groups":["s00"]},{"groups":["s01"]}],"approval":"manual"}`, 3)
	f.yes = rollout.FormatApproval("v1", 1, false) // of another revision
	f.expect(apps.RolloutAwaitingApproval, 1, "s00")
	f.yes = rollout.FormatApproval("v2", 2, false) // of a step that has not begun
	f.expect(apps.RolloutAwaitingApproval, 1, "s00")
	f.yes = rollout.FormatApproval("v2", 1, false)
	f.paused = true
	f.expect(apps.RolloutPaused, 1, "s00")
	f.paused = false
	f.expect(apps.RolloutAwaitingApproval, 2, "s00 s01")
	f.yes = rollout.FormatApproval("v2", 2, false)
	f.expect(apps.RolloutCompleted, 3, "s00 s01 s02")
}

func TestDecide_BackToStableIsImmediate(t *testing.T) {
	f := newFleet(t, canaryPlan, 4)
	f.settle()
	f.newest = "v1"
	f.expect(apps.RolloutCompleted, 3, "s00 s01 s02 s03")
}

func TestDecide_ThirdRevisionStartsOver(t *testing.T) {
	f := newFleet(t, `{"steps":[{"groups":["s00"]},{"groups":["s01"]}],"approval":"manual"}`, 3)
	f.settle()
	f.yes = rollout.FormatApproval("v2", 1, false)
	f.settle()
	f.newest = "v3"
	f.expect(apps.RolloutAwaitingApproval, 1, "s00")
	if f.with("v2") != "s01" || f.with("v1") != "s02" || f.status.StableRevision != "v1" {
		t.Errorf("v2 at %s, v1 at %s, %+v", f.with("v2"), f.with("v1"), f.status)
	}
}

func TestDecide_NewGroupDuringRolloutGetsTheStableRevision(t *testing.T) {
	f := newFleet(t, canaryPlan, 4)
	f.settle()
	f.sites["new"] = &site{wanted: 1, ready: 1, online: 1}
	f.settle()
	if f.sites["new"].has != "v1" {
		t.Errorf("the new group has %q", f.sites["new"].has)
	}
	delete(f.sites, "s03") // the canary is no target any more
	f.expect(apps.RolloutBlocked, 1, "")
	if !strings.Contains(f.status.Message, "s03") {
		t.Errorf("message %q", f.status.Message)
	}
}

func TestDecide_FirstRevisionGoesInStepsToo(t *testing.T) {
	f := newFleet(t, canaryPlan, 4)
	f.status, f.newest = apps.RolloutStatus{}, "v9"
	for _, s := range f.sites {
		s.has = ""
	}
	f.expect(apps.RolloutSoaking, 1, "s03")
	if d := rollout.Decide(f.request()); len(d.Revisions) != 1 {
		t.Errorf("revisions %v", d.Revisions)
	}
}

func TestDecide_ClosedWindowHolds(t *testing.T) {
	f := newFleet(t, `{"steps":[{"groups":["s00","s01"]}]}`, 3)
	f.sites["s01"].held = true
	f.expect(apps.RolloutProgressing, 1, "s00")
	f.sites["s01"].held = false
	f.expect(apps.RolloutCompleted, 2, "s00 s01 s02")

	f = newFleet(t, canaryPlan, 3)
	f.plan = nil
	f.sites["s01"].held = true
	f.expect(apps.RolloutProgressing, 1, "s00 s02")
	f.sites["s01"].held = false
	f.expect(apps.RolloutCompleted, 1, "s00 s01 s02")
}

func TestDecide_CheckAfterIsTheRestOfTheSoak(t *testing.T) {
	f := newFleet(t, canaryPlan, 4)
	f.settle()
	f.now = f.now.Add(4 * time.Minute)
	if d := f.decide(); d.CheckAfter != 6*time.Minute {
		t.Errorf("check after %s", d.CheckAfter)
	}
}

// TestDecide_RandomFleets checks in random histories what must hold always: no group is given the newest revision before its step, none gets an
// older one back unless the newest is the stable one, a step at a time, the order of groups does not matter, and a decision that is taken
// again changes nothing.
func TestDecide_RandomFleets(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
		f := newFleet(t, canaryPlan, 4+random.IntN(8))
		order := map[string]int{"": 0, "v1": 1, "v2": 2}
		for range 60 {
			f.disturb(random, order)
			before, r := f.status, f.request()
			given := map[string]string{}
			for name, s := range f.sites {
				given[name] = s.has
			}
			random.Shuffle(len(r.Groups), func(i, j int) { r.Groups[i], r.Groups[j] = r.Groups[j], r.Groups[i] })
			shuffled := rollout.Decide(r)
			d := f.decide()
			if diff := cmp.Diff(d, shuffled); diff != "" {
				t.Fatalf("seed %d: another order of groups decides otherwise:\n%s", seed, diff)
			}
			if d.Status.Revision == before.Revision && d.Status.Step > before.Step+1 && d.Status.Phase != apps.RolloutCompleted {
				t.Fatalf("seed %d: from step %d to %d", seed, before.Step, d.Status.Step)
			}
			for name, revision := range d.Revisions {
				if order[revision] < order[given[name]] && d.Status.Revision != d.Status.StableRevision {
					t.Fatalf("seed %d: %s had %s and is given %s: %+v", seed, name, given[name], revision, d.Status)
				}
			}
		}
	}
}

func (f *fleet) disturb(random *rand.Rand, order map[string]int) {
	names := slices.Sorted(maps.Keys(f.sites))
	s := f.sites[names[random.IntN(len(names))]]
	switch random.IntN(8) {
	case 0:
		s.online = random.IntN(3)
	case 1:
		s.ready = random.IntN(3)
	case 2:
		s.held = !s.held
	case 3:
		f.paused = !f.paused
	case 4:
		if random.IntN(4) == 0 {
			f.newest = fmt.Sprintf("v%d", len(order))
			order[f.newest] = len(order)
		}
	case 5:
		f.yes = rollout.FormatApproval(f.newest, int32(random.IntN(3)), true) //nolint:gosec // small
	default:
		f.now = f.now.Add(time.Duration(random.IntN(600)) * time.Second)
	}
}

func TestParsePlan(t *testing.T) {
	plan, err := rollout.ParsePlan("steps: [{groups: [a, b]}, {percent: 20}]\nsuccessThreshold: 95%\nsoak: 10m\napproval: manual\n")
	want := rollout.Plan{Steps: []rollout.Step{{Groups: []string{"a", "b"}}, {Percent: 20}}, Threshold: 0.95, Soak: 10 * time.Minute, Manual: true}
	if diff := cmp.Diff(want, plan); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	for text, want := range map[string]string{
		`{}`:                          "steps is empty",
		`{"steps":[{}]}`:              "steps[0] has neither",
		`{"steps":[{"percent":0}]}`:   "steps[0].percent is 0",
		`{"steps":[{"percent":101}]}`: "steps[0].percent is 101",
		`{"steps":[{"percent":50},{"percent":50}]}`:           "steps[1].percent is 50",
		`{"steps":[{"groups":["a"]},{"groups":["b","a"]}]}`:   "steps[1].groups repeats a of steps[0]",
		`{"steps":[{"groups":["a"],"percent":5}]}`:            "make two steps",
		`{"steps":[{"percent":5}],"successThreshold":"95"}`:   `successThreshold "95"`,
		`{"steps":[{"percent":5}],"successThreshold":"NaN%"}`: `successThreshold "NaN%"`,
		`{"steps":[{"percent":5}],"soak":"-1s"}`:              "soak -1s is negative",
		`{"steps":[{"percent":5}],"soak":"soon"}`:             "soon",
		`{"steps":[{"percent":5}],"approval":"maybe"}`:        `approval "maybe"`,
		`{"steps":[{"percent":5}],"stpes":[]}`:                "stpes",
		`[`:                                                   "read the plan",
		strings.Repeat(" ", 40<<10):                           "bytes, more than",
	} {
		if _, err := rollout.ParsePlan(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: got %v, want %q", text, err, want)
		}
	}
}

func FuzzParsePlan(f *testing.F) {
	f.Add(canaryPlan)
	f.Fuzz(func(t *testing.T, text string) {
		plan, err := rollout.ParsePlan(text)
		if err == nil && (len(plan.Steps) == 0 || plan.Threshold < 0 || plan.Threshold > 1 || plan.Soak < 0) {
			t.Errorf("%q gives %+v", text, plan)
		}
	})
}

package apps

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RolloutPhase says what a rollout waits for.
//
// +kubebuilder:validation:Enum=Progressing;Soaking;AwaitingApproval;Paused;Blocked;Completed
type RolloutPhase string

// The phases of a rollout.
const (
	// RolloutProgressing waits until enough pods of the step's groups are ready.
	RolloutProgressing RolloutPhase = "Progressing"
	// RolloutSoaking waits until they have been ready for the plan's time.
	RolloutSoaking RolloutPhase = "Soaking"
	// RolloutAwaitingApproval waits for a person.
	RolloutAwaitingApproval RolloutPhase = "AwaitingApproval"
	// RolloutPaused was paused by a person.
	RolloutPaused RolloutPhase = "Paused"
	// RolloutBlocked cannot go on as the plan is: Message says why.
	RolloutBlocked RolloutPhase = "Blocked"
	// RolloutCompleted means that all groups have the revision.
	RolloutCompleted RolloutPhase = "Completed"
)

// RolloutStatus is how far a revision of an EdgeApplication has come. It is the only state of a rollout: whichever replica of cloudcore reads
// it continues.
//
// +kubebuilder:object:generate=true
type RolloutStatus struct {
	// Revision is what is rolled out: the name of a ControllerRevision.
	Revision string `json:"revision"`
	// StableRevision is the last one that all groups had; empty if there was none.
	StableRevision string `json:"stableRevision,omitempty"`
	// Step is the current step of the plan, counted from 1; one more than the plan's for the last one, which is all groups.
	Step int32 `json:"step,omitempty"`
	// Steps is the number of steps, the last one included.
	Steps int32 `json:"steps,omitempty"`
	// StepStartedAt is when the step began.
	StepStartedAt metav1.Time `json:"stepStartedAt,omitzero"`
	// ReadySince is since when enough pods of the step are ready; empty if they are not.
	ReadySince metav1.Time `json:"readySince,omitzero"`
	// Phase says what the rollout waits for.
	Phase RolloutPhase `json:"phase"`
	// Message is for people: counts, or what to do.
	Message string `json:"message,omitempty"`
	// Groups are those that have been given a revision other than StableRevision while the rollout is not completed, by name.
	Groups []RolloutGroup `json:"groups,omitempty"`
}

// RolloutGroup is a group of nodes and the revision that it was given.
//
// +kubebuilder:object:generate=true
type RolloutGroup struct {
	Name     string `json:"name"`
	Revision string `json:"revision"`
}

package wire

// AutonomyAnnotation of a Node or a NodeGroup says how long the pods of the node, or of its nodes, stay while they cannot be
// reached: a Go duration, or AutonomyForever. What a Node says itself counts, 0s being no time at all.
const AutonomyAnnotation = "frond.io/autonomy"

// AutonomyForever is the value of AutonomyAnnotation for pods that always stay.
const AutonomyForever = "forever"

package wire

// AutonomyAnnotation of a Node says how long its pods stay while it cannot be reached: a Go duration, or AutonomyForever.
const AutonomyAnnotation = "frond.io/autonomy"

// AutonomyForever is the value of AutonomyAnnotation for pods that always stay.
const AutonomyForever = "forever"

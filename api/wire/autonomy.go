package wire

// AutonomyAnnotation of a Node or a NodeGroup sets how long the pods of the node, or of the group's nodes, stay while the nodes are
// unreachable: a Go duration, or AutonomyForever. The annotation of the Node takes precedence; 0s means no time at all.
const AutonomyAnnotation = "frond.io/autonomy"

// AutonomyForever is the value of AutonomyAnnotation for pods that always stay.
const AutonomyForever = "forever"

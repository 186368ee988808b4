// Package throttle limits what strangers can make cloudcore do: TokenThrottle bounds the wrong tokens that are checked,
// LogDedup the lines that are logged about one refusal. Both count in memory, each replica for itself, and are bounded.
package throttle

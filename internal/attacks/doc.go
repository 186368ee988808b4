// Package attacks holds what a stolen gateway may try: tests with a real hub, real cloudcores and a real apiserver, whose attacker has
// all that is on one gateway's disk and speaks the hub's protocol by itself, without the rules that a NATS server keeps.
// It has no other content.
//
// docs/operations/attacks.md lists what is tried, what stops it, and how it is seen.
//
// Each attack must read nothing, change nothing and disturb nobody else, and be counted and logged. All that the attacker ever receives is searched for
// a secret of another gateway, which changes all the while. The cluster starts once for all tests, in a temporary folder;
// FROND_ATTACKS_DIR names a folder to use and keep instead.
package attacks

// Package attacks tests what a stolen gateway may attempt, with a real hub, real cloudcores and a real apiserver. The attacker has
// everything on one gateway's disk and speaks the hub's protocol itself, without the rules that a NATS server follows.
// The package has no other content.
//
// docs/operations/attacks.md lists the attacks, what stops each, and how it is detected.
//
// Each attack must read nothing, change nothing and disturb no other gateway, and be counted and logged. All bytes that the attacker
// receives are searched for a secret of another gateway, which changes during the attack. The cluster starts once for all tests, in a
// temporary folder; FROND_ATTACKS_DIR names a folder to use and keep instead.
package attacks

// Package rules carries out KubeEdge's Rules: it decides by which cloudcore the messages of each are passed on, and writes its status.
//
// A Rule belongs to the replica that its name hashes to (controllers.Ownership). What two replicas do at a takeover is harmless: the hub gives a rule's
// message to one of them at a time (streams/rulefeed). A rule whose messages wait for a target delays no other: each has a goroutine of its own. Rules and
// RuleEndpoints may come in any order and may be changed.
//
// Routes tells the REST entry (cloud/rules/entry) which services callers can reach; every replica serves them.
//
// The status is written at most once in StatusPeriod for each rule, and only if it changed. Counts that were not written yet are lost with a killed replica.
package rules

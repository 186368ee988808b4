// Package faults breaks a real cluster by a seeded plan and verifies from each gateway's history that nothing was lost.
//
// Plan decides which fault hits which process at which time, as a function of a seed and a round number: the same two give the same
// round. HistoryChecker reads a gateway's history (package history) and the workload's deletions, and reports every violation of
// the promises: the versions of an object follow the order of the API; no object is removed that was not deleted; no deleted object
// returns; no node holds an object of another; nothing is acked that is not on disk. Both are pure. Package suite runs them
// against processes; docs/operations/faults.md explains how to run and replay the tests.
package faults

// Package faults breaks a real cluster by a seeded plan and proves from each gateway's history that nothing was lost.
//
// Plan says what is done to which process when, as a function of a seed and a number: the same two give the same round.
// Judge reads what a gateway wrote down (package history) and what the workload did to Kubernetes, and names every breach of
// the promises: versions of an object in the order of the API, nothing removed that was not deleted, nothing deleted that
// comes back, nothing foreign, nothing acked that is not on disk. Both are pure; the tests of this package hold the rig that
// runs them against processes, and docs/operations/faults.md says how to run and replay them.
package faults

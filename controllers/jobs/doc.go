// Package jobs carries out KubeEdge's jobs, of which it knows ImagePrePullJob.
//
// A job's step for one gateway is a NodeTask, which package desired delivers like a Device, and whose status package taskreports writes from the gateway's
// reports. This package creates and deletes NodeTasks and writes the job's status. How a job goes on is the question of package plan.
//
// A job is carried out by the replica that its name hashes to. Nothing of a job is in memory only: any replica goes on from the job's status and the
// tasks. The status is stored, under the version that it was decided from, before tasks are created; so of two owners at a time one conflicts. A task is
// deleted after the stored status has its outcome.
package jobs

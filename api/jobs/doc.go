// Package jobs defines the NodeTask: one step of a job, for one gateway. cloudcore creates it when the gateway's turn has come, it is delivered as
// Devices are, the gateway reports its status, and cloudcore deletes it when the job's status has the outcome. Nobody else writes NodeTasks.
//
// +groupName=jobs.frond.io
// +versionName=v1alpha1
package jobs

// Package jobs does a gateway's steps of jobs: the NodeTasks of its store, one after the other.
//
// A step begins when its task is in the store and ends with an outcome, or when the task is gone. The outcome is on the disk before it is reported, so a
// step that is done is not begun again, after a restart of edgecore neither; one that was interrupted begins anew. What is done is idempotent. A step's
// time runs only while there is a link, and an attempt that fails without a link does not count. Nothing of a task reaches a shell or the name of a file.
package jobs

// Package applications carries out EdgeApplications: package render makes their objects, package rollout decides which group of Nodes has which
// revision, and this package applies them, deletes what is no longer wanted, and writes the status.
//
// An application belongs to the replica that its name hashes to. Two owners at a time are harmless: the status of a rollout and the list of made
// objects are stored, with the version that they were decided from, before an object is applied. Nothing is written where nothing differs.
//
// An object is applied by server-side apply, only if it does not exist or has this application as its controller. It is deleted only if the list of
// made objects names it, the application is its controller, and all that is wanted is known: a manifest without a name, a revision that is gone,
// or groups that are not read yet delete nothing.
package applications

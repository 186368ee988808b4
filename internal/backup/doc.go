// Package backup saves what an installation cannot make again, and restores it: the authority, the keys and certificates of the hub and of
// cloudcore, what was chosen at installation, and who each gateway is (NodeIdentities).
//
// A backup is one file, encrypted by age (a passphrase, or recipients): nothing of it is on a disk in plain text. It holds no streams of
// the hub, no objects of users and no bootstrap tokens; cloudcore publishes the objects again, and tokens last for a day.
//
// Restoring is safe to repeat, and to do in a cluster that has lost a part only. A Secret or ConfigMap that exists and differs is kept
// unless replacing is asked for. A NodeIdentity is merged: the key that was recorded later counts, and a revoked key or node stays revoked,
// whichever side knows of it.
package backup

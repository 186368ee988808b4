// Package backup saves the parts of an installation that cannot be made again, and restores them: the CA, the keys and certificates of
// the hub and of cloudcore, the settings of the installation, and the identities of gateways (NodeIdentities).
//
// A backup is one file, encrypted by age (a passphrase, or recipients): nothing is written to a disk in plain text. It holds no streams of
// the hub, no objects of users and no bootstrap tokens; cloudcore publishes the objects again, and tokens last for a day.
//
// A restore is idempotent, and also works in a cluster that has lost only a part. An existing Secret or ConfigMap that differs is kept
// unless replacing is requested. A NodeIdentity is merged: the later recorded key wins, and a revoked key or node stays revoked,
// whichever side has the revocation.
package backup

// Package store holds the Kubernetes objects of one node: durably in a key-value bucket of the node's own JetStream, with a
// copy of all objects in memory that answers every read.
//
// The store owns the bucket and is its only writer. Each write names the last sequence it expects, so a second writer is
// detected and never overwritten. The store knows no link, no subject of the wire and no Kubernetes type.
//
// Guarantees:
//   - Put, Delete, Apply and Replace return after the server has synced the change to disk (given a server with
//     SyncAlways). Readers and watchers see a change after that, never before.
//   - The revision is the bucket's stream sequence. It grows with every write and is the local resourceVersion.
//   - The cursor is written with the last of the objects that it covers, or after them, and in the same order of commits:
//     after a crash it can be behind them, never ahead.
//   - A hub message that arrives late or twice changes nothing.
//   - An object deleted here stays hidden from late messages with its UID until the cloud's tombstone, a full snapshot
//     without it, or an object with another UID arrives.
//   - With a Sealer secret objects are never on disk as plain text. An object that cannot be opened, because the key is
//     lost, counts as damaged.
//   - With a last-good copy (Config.LastGoodFile) damaged and lost records are restored from it. They count as the newest
//     state if the sums prove that. Otherwise they are marked as older (Entry.LastGood) and the cursor is set back.
//   - Damage is detected when the store is opened: each record has a checksum and each commit the sum over all records, so
//     a changed, lost or foreign record is noticed. Bad bytes are kept under a quarantine key, and the cursor is cleared
//     so that the next attach is a full one. While Cursor().StreamEpoch is "" the store may be incomplete: "not found"
//     is then no proof that an object does not exist.
//
// All methods may be called concurrently. Objects passed in and out are shared: no caller may change their bytes.
package store

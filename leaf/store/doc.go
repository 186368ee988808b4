// Package store keeps the Kubernetes objects of one node: durable in a key-value bucket of the node's own JetStream, and
// a copy of all of them in memory from which every read is answered.
//
// It owns the bucket and is its only writer; each write names the sequence it expects to be the last one, so a second
// writer is noticed, never overwritten. It knows no link, no subject of the wire and no Kubernetes type.
//
// What a caller may build on:
//   - Put, Delete, Apply and Replace return after the server has synced the change to disk (given a server with
//     SyncAlways). Readers and watchers see a change after that, never before.
//   - The revision is the bucket's stream sequence. It grows with every write and is the local resourceVersion.
//   - The cursor is written after the objects it speaks for and in the same order of commits: after a crash it can be
//     behind them, never ahead.
//   - A message of the hub that comes late or twice changes nothing.
//   - An object deleted here stays hidden from late messages with its UID until the cloud's tombstone, a full snapshot
//     without it, or an object with another UID arrives.
//   - With a Sealer what is secret is never on the disk as it is. An object that cannot be opened, because the key is lost, is
//     damaged.
//   - With a copy (Config.LastGoodFile) damaged and lost records come back from it: as the newest where the sums prove that, else marked
//     as older (Entry.LastGood) and with the cursor set back, so that nobody takes them for the newest.
//   - Damage is found when the store is opened: each record has a checksum and each commit the sum over all records, so
//     a changed, lost or foreign record is noticed. Bad bytes are kept under a quarantine key, and the cursor is cleared
//     so that the next attach is a full one. While Cursor().StreamEpoch is "" the store may be incomplete: "not found"
//     is then no proof that an object does not exist.
//
// All methods may be called concurrently. Objects handed in and out are shared: nobody may change their bytes.
package store

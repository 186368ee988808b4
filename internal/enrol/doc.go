// Package enrol is a gateway's side of its identity: its key, how it gets recorded in the cloud, and how it stays so.
//
// It owns the folder identity of a gateway (mode 0700): the key, which is made here and never leaves, the CAs of the hub and of
// the cluster, and what the cloud said last. Each file is replaced whole and synced, so a gateway that dies between any two
// steps goes on where it was, and a token is used once.
//
// A Keeper answers for each connection of the leaf who the gateway is. While it is not recorded, it looks for the CA whose hash it
// was given, lets the leaf dial nobody else, and asks with its token. Later it renews its key, before it expires or after.
// Nothing of a token leaves before the CA was found, and then only to a server which that CA has signed.
//
// Time is the cloud's, as far as it is known: what the machine's clock says is used while it is plausible.
package enrol

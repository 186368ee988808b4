// Package enroll manages a gateway's side of its identity: its key, its enrolment in the cloud, and the renewal of its key.
//
// It owns the folder identity of a gateway (mode 0700): the key, which is created here and never leaves, the CAs of the hub
// and of the cluster, and the cloud's latest answer. Each file is replaced whole and synced, so a gateway that dies between
// any two steps continues where it stopped, and a token is used once.
//
// A Renewer authenticates each connection of the leaf. While the gateway is not enrolled, it searches for the CA with the
// configured hash, lets the leaf dial no other server, and sends its token. Later it renews its key, before it expires or
// after. No part of a token leaves before the CA was found, and then only to a server that this CA has signed.
//
// The time is the cloud's, as far as it is known: the machine's clock is used while it is plausible.
package enroll

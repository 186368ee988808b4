// Package install makes what a cluster needs for Frond: the authority, keys, certificates and configuration of the hub and of
// cloudcore, and tokens for gateways to join with.
//
// Fill is pure: it takes the files that are there and returns all that must be, with a reason for each that it made. Init
// reads and writes them as Kubernetes objects; a development cluster keeps the same files in a folder.
//
// A key that exists is never replaced unasked; what is missing is completed; a certificate near its end, or for other names, is
// made again for the key it has. Two that run at once end with the same files. Who asks twice changes nothing the second time.
package install

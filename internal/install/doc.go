// Package install makes the objects that Frond needs in a cluster: the CA, keys, certificates and configuration of the hub and of
// cloudcore. Package jointoken makes the tokens by which gateways join.
//
// Fill is pure: it takes the existing files and returns all required ones, with a reason for each file that it made. Init
// reads and writes them as Kubernetes objects; a development cluster keeps the same files in a folder.
//
// An existing key is replaced only on request. Missing files are completed. A certificate near its end, or for other names, is
// issued again for its existing key. Two concurrent runs end with the same files. A second run changes nothing.
package install

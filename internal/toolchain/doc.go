// Package toolchain finds or builds the programs and images that a development cluster and the tests run: the
// Kubernetes control plane, containerd with its shim, runc and CNI plugins, nats-server, Frond's own commands, and a
// few container images.
//
// Programs are compiled from Go modules whose versions and checksums are in this repository (tools/kube, tools/node,
// tools/images and the main go.mod). Only busybox, for images, is downloaded, as a Debian package. Results are kept outside the tree, one folder for
// each set of inputs, so a second call with the same inputs only finds the folder and works without a network.
//
// A folder in the cache is complete or absent: it is built under another name, synced, then renamed. A lock for each
// kind of result makes a second process wait instead of building the same thing; the kernel releases it when its owner
// dies. The next run removes leftovers of an interrupted one; its compiled packages stay in Go's own build cache.
//
// The package runs the go command and apt-get: to download busybox and, as root, to install a program that the machine lacks. It starts no component of the cluster.
package toolchain

// Package dmi serves KubeEdge's mappers: programs that speak a protocol of devices and talk to a gateway over unix sockets.
//
// Server owns the socket dmi.sock, one connection to each mapper and what each mapper has. It knows the Devices and DeviceModels that it is given,
// and brings each mapper to that state; it keeps no values. What a mapper reports goes to a Twin before it is answered. One goroutine serves one
// mapper, so that a mapper that hangs delays no other one. After Start has returned no goroutine is left.
package dmi

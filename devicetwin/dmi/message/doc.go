// Package message converts Devices and DeviceModels to the messages of KubeEdge's device mapper interface.
//
// It is pure. What it returns never ends a mapper that is built on KubeEdge's framework: fields that such a mapper reads without a check are set, a
// property that its model lacks is left out, and a value that the interface cannot express is replaced. Notes say what was left out or replaced.
package message

// Package devicetwin is what a gateway knows of each of its devices: the desired values of its Device, the values that apps and mappers report, its
// state.
//
// Merge, Admit, Delta and Status are functions on values. What Merge returns does not depend on the order of its arguments and on how often a value
// comes, so a redelivered or late message changes nothing, and an older value never replaces a newer one. Twins holds the records of a gateway;
// each change is in its store before it is answered. The package knows no topic (devicetwin/mqtt) and no broker (devicetwin/broker).
package devicetwin

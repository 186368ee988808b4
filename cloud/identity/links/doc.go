// Package links knows which node each leaf connection of the hub belongs to, and closes the links that may not stay.
//
// Registry records admissions, which all replicas announce to each other. Schedule collects what must be checked after a
// change of a record or an admission; Enforcer checks and closes, on every replica, and twice is harmless.
// ViolationCounter counts the links that the hub itself closed for what came over them.
package links

// Package faults breaks a real cluster by a seeded plan.
package faults

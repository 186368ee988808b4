// Package e2e holds the end-to-end tests: real processes of a development cluster, driven as a user would, under real
// faults. It has no other content.
//
// The cluster starts once for all tests, in a temporary folder. FROND_E2E_DIR names a folder to use and keep instead, FROND_E2E_RUNTIME
// the runtime of the gateways. Tests that neither disturb the cluster nor measure it run in parallel, when all others have ended.
package e2e

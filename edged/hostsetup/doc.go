// Package hostsetup turns its machine into a gateway, and undoes that: checks, configuration, systemd unit, start.
//
// It owns the files that it writes and no others. All steps are idempotent. Each check has a name by
// which it can be ignored, and a hint what to do.
package hostsetup

// Package machine makes the machine that it runs on a gateway, and undoes it: checks, configuration, systemd unit, start.
//
// It owns the files that it writes and no others. What it does twice changes nothing the second time. Each check has a name by
// which it can be ignored, and says what to do.
package machine

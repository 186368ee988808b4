// Package systemd holds the unit that runs edgecore on a gateway.
package systemd

import (
	_ "embed"
)

// Name is the unit's name.
const Name = "edgecore.service"

// Unit is the template of its file; it is filled with Edgecore and Config, the paths of the program and of its configuration.
//
//go:embed edgecore.service
var Unit string

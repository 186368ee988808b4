// Package buildinfo returns the version of Frond of this binary.
package buildinfo

import "runtime/debug"

// version is stamped by the linker: -X github.com/frond-edge/frond/internal/buildinfo.version=v0.1.0.
var version string

// Version returns the stamped version, or else the module's, or "devel".
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

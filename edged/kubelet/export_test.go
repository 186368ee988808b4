package kubelet

// Settings returns the kubelet's settings for a configuration; able is a process with CAP_SYS_RESOURCE.
func Settings(cfg Config, able bool) (map[string]any, error) {
	return buildSettings(cfg, capabilities{sysResource: able, openFiles: 4096})
}

// NewGate, Stand and CloseGate open the gate to tests.
var (
	NewGate   = newConnGate
	Stand     = (*connGate).installInto
	CloseGate = (*connGate).close
)

package edged

// Settings shows what a configuration means to the kubelet; able is a process with CAP_SYS_RESOURCE.
func Settings(cfg Config, able bool) (map[string]any, error) {
	return settings(cfg, powers{resources: able, openFiles: 4096})
}

// NewGate, Stand and CloseGate open the gate to tests.
var (
	NewGate   = newGate
	Stand     = (*gate).stand
	CloseGate = (*gate).close
)

// MachineOf is the stand-in for cAdvisor.
func MachineOf(dir string) *machine { return &machine{node: "edge-1", dir: dir} }

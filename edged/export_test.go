package edged

// Settings shows what a configuration means to the kubelet; able is a process with CAP_SYS_RESOURCE.
func Settings(cfg Config, able bool) (map[string]any, error) {
	return buildSettings(cfg, capabilities{sysResource: able, openFiles: 4096})
}

// NewGate, Stand and CloseGate open the gate to tests.
var (
	NewGate   = newConnGate
	Stand     = (*connGate).installInto
	CloseGate = (*connGate).close
)

// MachineOf is the stand-in for cAdvisor.
func MachineOf(dir string) *hollowMachine { return &hollowMachine{node: "edge-1", dir: dir} }

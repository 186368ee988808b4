package devcluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
)

// Command returns a command that runs as on a gateway: in its network and mount namespaces where it has some, with the
// cluster's programs first in PATH, and with frond edge connected to its edgecore.
func (c *Cluster) Command(ctx context.Context, edge string, args ...string) (*exec.Cmd, error) {
	if err := c.mustBeEdge(edge); err != nil {
		return nil, err
	}
	if c.state.Spec.Runtime == Containerd {
		holder := c.state.Processes[c.holderName(edge)]
		if !holder.Alive() {
			return nil, fmt.Errorf("the holder of the namespaces of %s is gone: run frond dev up", edge)
		}
		args = append([]string{"nsenter", "--target=" + strconv.Itoa(holder.PID), "--net", "--mount", "--wdns=/", "--"}, args...)
	}
	// env looks the program up in the new PATH; exec.Command would use this process's PATH.
	env := []string{"PATH=" + c.layout.path("bin") + ":" + os.Getenv("PATH"), "FROND_SOCKET=" + c.layout.edgeFiles(edge).apiSocket()}
	return exec.CommandContext(ctx, "env", append(env, args...)...), nil
}

package exercise

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/frond-edge/frond/loadtest/plan"
)

// restoreTimeout bounds the command that starts again what was killed, also after an interrupt.
const restoreTimeout = 2 * time.Minute

// restore starts again what a phase has killed, also when ctx has ended.
func restore(ctx context.Context, phase plan.Phase) error {
	if phase.Kill == nil || len(phase.Kill.Restore) == 0 {
		return nil
	}
	return runCommand(context.WithoutCancel(ctx), restoreTimeout, phase.Kill.Restore)
}

// runCommand runs a program with its arguments, without a shell.
func runCommand(ctx context.Context, limit time.Duration, command []string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil { //nolint:gosec // the plan's author runs it
		return fmt.Errorf("command %q: %w: %.500s", command, err, out)
	}
	return nil
}

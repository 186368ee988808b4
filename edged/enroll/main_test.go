package enroll_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/edged/enroll"
	"github.com/frond-edge/frond/test/kit"
)

// childOrder, if set, makes the test binary a gateway that joins and maintains its key until it is killed.
const childOrder = "FROND_ENROL_CHILD"

func TestMain(m *testing.M) {
	if text := os.Getenv(childOrder); text != "" {
		if err := runChildTask(text); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(kit.AwaitGoroutines(m))
}

// childTask is the task of the child.
type childTask struct {
	Dir, Hub, Hash string
	// Renew: the child runs until its key was renewed; without it the child ends when it has joined.
	Renew bool
}

func runChildTask(text string) error {
	var o childTask
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) //nolint:forbidigo // the main function of a child process
	defer cancel()
	cfg := enroll.Config{Node: testNode, Dir: o.Dir, Hub: []string{o.Hub}, Token: testToken, CAHashes: []string{o.Hash}}
	log := zap.NewNop()
	before, err := enroll.Join(ctx, cfg, log)
	if err != nil || !o.Renew {
		return err
	}
	g, err := startGateway(ctx, cfg, o.Dir+"-leaf", log)
	if err != nil {
		return err
	}
	for g.renewer.Record().Key == before.Key && ctx.Err() == nil {
		<-time.After(10 * time.Millisecond)
	}
	g.stop()
	return ctx.Err()
}

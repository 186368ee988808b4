package leaf_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/frond-edge/frond/leaf"
)

// A gateway that was away for longer than its certificate is good for says so, in words that name the file and the day, and
// links again when the certificate was replaced, without a restart.
func TestAnExpiredCertificateIsNamedAndReplaced(t *testing.T) {
	ca := newAuthority(t)
	ca.issue("hub", 2)
	expired := time.Now().Add(-30 * 24 * time.Hour)
	ca.issueUntil("node", 3, expired)
	user, err := nkeys.CreateUser()
	ca.must(err)
	public, err := user.PublicKey()
	ca.must(err)
	seed, err := user.Seed()
	ca.must(err)
	ca.must(os.WriteFile(ca.path("seed"), seed, 0o600))
	serials := make(chan string, 100) // more than this test dials
	hub := secureHub(t, ca, public, serials)
	core, logs := observer.New(zapcore.WarnLevel)
	l, err := leaf.New(leaf.Config{
		Node: "edge-1", Dir: t.TempDir(), Reserve: -1, Hub: []string{fmt.Sprintf("tls://127.0.0.1:%d", hub)},
		CAFile: ca.path("ca.pem"), CertFile: ca.path("node.pem"), KeyFile: ca.path("node.key"), NkeyFile: ca.path("seed"),
		RedialMin: 50 * time.Millisecond, RedialMax: 500 * time.Millisecond,
	}, zap.New(core))
	ca.must(err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- l.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		ca.must(<-done)
	})
	<-l.Ready()
	told := func() bool {
		for _, entry := range logs.All() {
			text := entry.Message + fmt.Sprint(entry.ContextMap())
			if strings.Contains(text, ca.path("node.pem")+" expired on "+expired.UTC().Format(time.DateOnly)) {
				return true
			}
		}
		return false
	}
	waitFor(t, "the log names the certificate and the day", told)
	ca.issue("node", 4)
	waitFor(t, "the link is up with the new certificate", func() bool {
		state, _ := l.WatchLink()
		return state.Up
	})
	for len(serials) > 0 {
		if serial := <-serials; serial != "4" {
			t.Errorf("the hub was shown certificate %s", serial)
		}
	}
}

// waitFor polls for what happens in another goroutine.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

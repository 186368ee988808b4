package link_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestFencedLink_UpOnlyWithoutFence(t *testing.T) {
	hub := streamstest.NewSwitchableLink()
	gate := link.NewFencedLink(hub, zaptest.NewLogger(t))
	open := func() bool { up, _ := gate.State(); return up }
	if open() {
		t.Error("open before it runs")
	}
	told := func(changed <-chan struct{}) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatal("no word of a change")
		}
	}
	_, changed := gate.State()
	streamstest.StartPart(t, gate.Start)
	told(changed)
	if !open() {
		t.Error("shut though the link is up")
	}
	_, changed = gate.State()
	hub.SetUp(false)
	told(changed)
	if open() {
		t.Error("open though the link is down")
	}
	hub.SetUp(true)
	kit.Eventually(t, "open again", open)
	_, changed = gate.State()
	gate.Fence(time.Second)
	told(changed)
	if open() {
		t.Error("open in spite of a fence")
	}
	gate.Fence(2 * time.Second) // renewed
	if !gate.Fenced() {
		t.Error("no fence")
	}
	kit.Eventually(t, "open after the fence", func() bool { return open() && !gate.Fenced() })
}

// A renewed fence holds from its renewal on, and the link opens when the fence ends.
func TestFencedLink_FenceIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := link.NewFencedLink(streamstest.NewSwitchableLink(), zaptest.NewLogger(t))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1) // the one result
		go func() { done <- gate.Start(ctx) }()
		is := func(when string, want bool) {
			t.Helper()
			synctest.Wait()
			if open, _ := gate.State(); open != want || gate.Fenced() == want {
				t.Errorf("%s: open %v, fenced %v", when, open, gate.Fenced())
			}
		}
		is("at first", true)
		gate.Fence(time.Minute)
		is("fenced", false)
		<-time.After(50 * time.Second)
		gate.Fence(time.Minute)
		<-time.After(59 * time.Second)
		is("renewed", false)
		<-time.After(2 * time.Second)
		is("after it", true)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

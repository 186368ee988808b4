package streams_test

import (
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/streams/streamstest"
)

func TestAGateIsOpenWhereTheLinkIsUpAndNoFence(t *testing.T) {
	link := newLink()
	gate := streams.NewGate(link, zaptest.NewLogger(t))
	open := func() bool { up, _ := gate.State(); return up }
	if open() {
		t.Error("open before it runs")
	}
	_, changed := gate.State()
	run(t, gate.Start)
	<-changed
	if !open() {
		t.Error("shut though the link is up")
	}
	_, changed = gate.State()
	link.set(false)
	<-changed
	if open() {
		t.Error("open though the link is down")
	}
	link.set(true)
	streamstest.Eventually(t, "open again", open)
	_, changed = gate.State()
	gate.Fence(time.Second)
	<-changed
	if open() {
		t.Error("open in spite of a fence")
	}
	gate.Fence(2 * time.Second) // renewed
	if !gate.Fenced() {
		t.Error("no fence")
	}
	streamstest.Eventually(t, "open after the fence", func() bool { return open() && !gate.Fenced() })
}

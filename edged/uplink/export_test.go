package uplink

import (
	"github.com/vishvananda/netns"
	"go.uber.org/zap"
)

// NewAt is New for a network namespace.
func NewAt(space netns.NsHandle, isUp func() bool, redial func(), log *zap.Logger) *Watcher {
	w := New(isUp, redial, log)
	w.space = &space
	return w
}

// ShouldDial exports shouldDial.
var ShouldDial = shouldDial

// DescribeUplinks exports describeUplinks.
var DescribeUplinks = describeUplinks

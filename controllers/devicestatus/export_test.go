package devicestatus

import (
	"time"

	"go.uber.org/zap"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/controllers"
)

// NewFastAbsence is NewAbsence with short intervals.
func NewFastAbsence(applier *Applier, objects, statuses cache.Cache, owner controllers.Ownership, log *zap.Logger) *Absence {
	a := NewAbsence(applier, objects, statuses, owner, log)
	a.scanEvery, a.settle = 50*time.Millisecond, 2*time.Second
	return a
}

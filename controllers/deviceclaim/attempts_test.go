package deviceclaim

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A write that fails is put off, and no other one with it.
func TestAttempts_OneFailurePutsOffNoOther(t *testing.T) {
	a := newAttempts(time.Hour, time.Hour)
	counts := map[string]int{}
	write := func(key string, result error) {
		t.Helper()
		if err := a.try(key, func() error { counts[key]++; return result }); err != nil {
			t.Errorf("%s ends the scan: %v", key, err)
		}
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	for range 3 {
		a.begin()
		write("forbidden", forbidden)
		write("invalid", apierrors.NewInvalid(schema.GroupKind{}, "", nil))
		write("good", nil)
	}
	if counts["forbidden"] != 1 || counts["invalid"] != 1 || counts["good"] != 3 {
		t.Errorf("written %v", counts)
	}
}

// A scan whose writes are all forbidden ends, and one in which another has succeeded does not.
func TestAttempts_AllForbiddenEndTheScan(t *testing.T) {
	for _, good := range []bool{false, true} {
		a, count := newAttempts(time.Hour, time.Hour), 0
		a.begin()
		if good {
			_ = a.try("good", func() error { return nil })
		}
		for ; count < 2*maxForbidden; count++ {
			err := a.try(fmt.Sprint(count), func() error { return apierrors.NewForbidden(schema.GroupResource{}, "", nil) })
			if err != nil && !errors.Is(err, errNoRight) {
				t.Fatal(err)
			}
			if err != nil {
				break
			}
		}
		if ended := count < 2*maxForbidden; ended == good {
			t.Errorf("another succeeded: %t; ended: %t", good, ended)
		}
	}
}

package kit

import (
	"time"

	"go.uber.org/goleak"
)

// endTimeout is how long the goroutines of tests may take to end. Package goleak waits for less than half a second, in which a busy
// machine does not run all of them, and a package that leaks has no failed test that could be run again.
const endTimeout = 20 * time.Second

// AwaitGoroutines returns tests for goleak.VerifyTestMain which, once they have passed, wait until all their goroutines have ended but the
// ignored ones.
func AwaitGoroutines(m goleak.TestingM, ignored ...goleak.Option) goleak.TestingM {
	return patientTests{m, ignored}
}

type patientTests struct {
	goleak.TestingM
	ignored []goleak.Option
}

// Run runs the tests and waits.
func (p patientTests) Run() int {
	code := p.TestingM.Run()
	for end := time.Now().Add(endTimeout); code == 0 && time.Now().Before(end) && goleak.Find(p.ignored...) != nil; { // which waits itself
		continue
	}
	return code
}

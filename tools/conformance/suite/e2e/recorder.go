package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
)

// A result is the result of one test, in the format that tools/conformance reads.
type result struct {
	Test    string  `json:"test"`
	State   string  `json:"state"` // passed, skipped, failed
	Seconds float64 `json:"seconds"`
	Message string  `json:"message,omitempty"`
	Log     string  `json:"log,omitempty"` // of a failed test
}

// A recorder writes one file for each finished test.
type recorder struct {
	dir   string
	limit time.Duration
	timer *time.Timer // of the running test; Ginkgo runs one at a time in a process
}

func newRecorder(dir string, limit time.Duration) *recorder { return &recorder{dir: dir, limit: limit} }

func (r *recorder) register() {
	ginkgo.ReportBeforeEach(func(report ginkgo.SpecReport) {
		if report.State.Is(types.SpecStateSkipped | types.SpecStatePending) {
			return
		}
		name := report.FullText()
		r.timer = time.AfterFunc(r.limit, func() {
			r.save(result{Test: name, State: "failed", Seconds: r.limit.Seconds(), Message: fmt.Sprintf("took longer than %s", r.limit)})
			os.Exit(1)
		})
	})
	ginkgo.ReportAfterEach(func(report ginkgo.SpecReport) {
		if r.timer == nil {
			return // not selected by focus, skip or label
		}
		r.timer.Stop()
		r.timer = nil
		if report.State.Is(types.SpecStateInterrupted | types.SpecStateAborted) {
			return // the next run repeats it
		}
		r.save(resultOf(report))
	})
}

func resultOf(report ginkgo.SpecReport) result {
	res := result{Test: report.FullText(), Seconds: report.RunTime.Seconds(), Message: report.Failure.Message}
	switch {
	case report.State.Is(types.SpecStatePassed):
		res.State = "passed"
	case report.State.Is(types.SpecStateSkipped):
		res.State = "skipped"
	default:
		res.State = "failed"
		res.Log = report.CapturedGinkgoWriterOutput
	}
	return res
}

// save replaces the file atomically, so that a killed process leaves no partial file.
func (r *recorder) save(res result) {
	content, err := json.MarshalIndent(res, "", " ")
	if err == nil {
		name := filepath.Join(r.dir, fmt.Sprintf("%x.json", sha256.Sum256([]byte(res.Test)))[:len(r.dir)+1+16]+".json")
		err = os.WriteFile(name+".tmp", content, 0o644)
		if err == nil {
			err = os.Rename(name+".tmp", name)
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "e2e: save the result of %q: %v\n", res.Test, err)
		os.Exit(1) // a run without results is useless
	}
}

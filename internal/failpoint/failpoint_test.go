package failpoint_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/frond-edge/frond/internal/failpoint"
)

// child marks this test binary as a process that passes points and may die there.
const child = "FROND_CRASH_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(child) != "" {
		failpoint.At("other")
		failpoint.At("here")
		failpoint.At("here")
		os.Exit(7) // it survived
	}
	os.Exit(m.Run())
}

func TestAt_KillsAtTheNamedPoint(t *testing.T) {
	for value, dies := range map[string]bool{"": false, "nowhere": false, "here": true, "here:2": true, "here:3": false, "here:x": true} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), child+"=1", failpoint.Env+"="+value)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Fatalf("%q: %v", value, err)
		}
		status, _ := exit.Sys().(syscall.WaitStatus)
		if status.Signaled() != dies || dies && status.Signal() != syscall.SIGKILL {
			t.Errorf("%q: %v, want death by SIGKILL: %t", value, err, dies)
		}
		if dies != strings.Contains(string(out), failpoint.ReachedPrefix+"here\n") {
			t.Errorf("%q: it said %q", value, out)
		}
	}
}

// TestPoints_MatchTheSource compares the list with the calls in the source.
func TestPoints_MatchTheSource(t *testing.T) {
	var listed, found []string
	for _, points := range failpoint.Points() {
		listed = append(listed, points...)
	}
	call := regexp.MustCompile(`failpoint\.At\("([^"]+)"\)`)
	for _, folder := range []string{"streams", "leaf", "controllers", "cloud", "edged"} {
		err := filepath.WalkDir(filepath.Join("..", "..", folder), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, match := range call.FindAllStringSubmatch(string(source), -1) {
				found = append(found, match[1])
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(listed)
	slices.Sort(found)
	if !slices.Equal(listed, found) {
		t.Errorf("listed %v\nin the code %v", listed, found)
	}
}

func BenchmarkAt(b *testing.B) {
	for b.Loop() {
		failpoint.At("nowhere")
	}
}

package frond_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// With gRPC's request tracing the linker keeps every exported method, because the tracing pages use templates: edgecore was 108 instead of
// 77 MB. The flags that leave it out must be the same wherever Frond is built, or Go compiles everything twice.
func TestBuildFlags_LeaveOutTracing(t *testing.T) {
	read := func(file string) string {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	flags := regexp.MustCompile(`(?m)^export GOFLAGS := (.*)$`).FindStringSubmatch(read("Makefile"))
	if flags == nil {
		t.Fatal("the Makefile sets no GOFLAGS")
	}
	for _, file := range []string{"internal/toolchain/recipe.go", "CONTRIBUTING.md"} {
		if !strings.Contains(read(file), flags[1]) {
			t.Errorf("%s does not build with the flags of the Makefile, %s", file, flags[1])
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/edgecore", "./cmd/cloudcore")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+flags[1])
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "golang.org/x/net/trace\n") {
		t.Error("edgecore or cloudcore links golang.org/x/net/trace; is grpcnotrace still the tag that leaves it out?")
	}
}

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestGenerate_CommittedCodeIsCurrent compares the committed code of each .proto file with what its text gives.
func TestGenerate_CommittedCodeIsCurrent(t *testing.T) {
	t.Chdir("../../..")
	paths, err := filepath.Glob("devicetwin/dmi/dmipb/*.proto")
	if err != nil || len(paths) != 2 {
		t.Fatalf("%d .proto files: %v", len(paths), err)
	}
	files, err := generate(t.Context(), paths)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 3 {
		t.Errorf("%d generated files, want the messages, the services and their code for gRPC", len(files))
	}
	for name, want := range files {
		if found, err := os.ReadFile(name); err != nil || string(found) != want {
			t.Errorf("%s is not what its .proto file gives (%v): run make generate", name, err)
		}
	}
}

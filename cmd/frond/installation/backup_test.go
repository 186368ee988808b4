package installation

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/frond-edge/frond/test/kit/clitest"
)

// TestBackup_NeedsAKey tries mistyped arguments, and runs without a terminal.
func TestBackup_NeedsAKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pass")
	if err := os.WriteFile(file, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"give --file":                {"create"},
		"12 or more":                 {"create", "--file", "x", "--passphrase-file", file},
		"--recipient: age encrypts":  {"create", "--file", "x", "--passphrase-file", file, "--recipient", "age1x"},
		"understand the recipients":  {"create", "--file", "x", "--recipient", "age1x"},
		"--identity-file, not both":  {"restore", "--file", file, "--passphrase-file", file, "--identity-file", file},
		"no such file":               {"restore", "--file", "/nowhere"},
		"holds no AGE-SECRET-KEY":    {"restore", "--file", file, "--identity-file", file},
		"read the passphrase: open ": {"restore", "--file", file, "--passphrase-file", "/nowhere"},
	} {
		if code, _, errs := clitest.Run(NewBackup(), args...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%v: code %d, %s, want %q", args, code, errs, want)
		}
	}
}

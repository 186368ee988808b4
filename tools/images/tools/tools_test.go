package main_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	main "github.com/frond-edge/frond/tools/images/tools"
)

// The test binary is the tools program when it is called by one of its names.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "tools.test" {
		os.Exit(main.Run(os.Args))
	}
	os.Exit(m.Run())
}

// tools makes a folder of links, as in the image, the only one in PATH.
func tools(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range main.Names() {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	return dir
}

func TestPrograms(t *testing.T) {
	bin := tools(t)
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		args []string
		in   string
		out  string
		code int
	}{
		"sh runs a text":             {args: []string{"sh", "-c", "echo hello; exit 3"}, out: "hello\n", code: 3},
		"sh takes parameters":        {args: []string{"sh", "-c", "echo $1 $2", "zero", "one", "two"}, out: "one two\n"},
		"sh reads standard input":    {args: []string{"sh"}, in: "echo piped", out: "piped\n"},
		"sh -e stops":                {args: []string{"sh", "-ec", "false; echo no"}, code: 1},
		"sh pipes":                   {args: []string{"sh", "-c", "seq 3 | head -n 2 | wc -l"}, out: "2\n"},
		"sh knows what is missing":   {args: []string{"sh", "-c", "no-such-program"}, code: 127},
		"sh has an exit trap":        {args: []string{"sh", "-c", "trap 'echo bye' EXIT; echo hi"}, out: "hi\nbye\n"},
		"test as a program":          {args: []string{"test", "-f", "/no/such/file"}, code: 1},
		"bracket as a program":       {args: []string{"[", "a", "=", "a", "]"}},
		"printf as a program":        {args: []string{"printf", "%s-%d\n", "a", "7"}, out: "a-7\n"},
		"false":                      {args: []string{"false"}, code: 1},
		"cat":                        {args: []string{"cat"}, in: "as it is", out: "as it is"},
		"cat of nothing":             {args: []string{"cat", "/no/such/file"}, code: 1},
		"head":                       {args: []string{"head", "-2"}, in: "1\n2\n3\n", out: "1\n2\n"},
		"tail":                       {args: []string{"tail", "-n", "1"}, in: "1\n2\n3\n", out: "3\n"},
		"grep finds":                 {args: []string{"grep", "-c", "b"}, in: "a\nb\nbb\n", out: "2\n"},
		"grep does not find":         {args: []string{"grep", "-q", "x"}, in: "a\n", code: 1},
		"wc":                         {args: []string{"wc"}, in: "a b\nc\n", out: "2 3 6\n"},
		"date in seconds has digits": {args: []string{"sh", "-c", "date +%s | grep -cw '[0-9]*'"}, out: "1\n"},
		"files": {
			args: []string{"sh", "-ec", "cd " + dir + "; mkdir -p a/b; echo x >a/b/f; cp -r a c; mv c/b/f d; cat d; rm -r a c; ls"},
			out:  "x\nd\n",
		},
		"env":          {args: []string{"env", "COLOUR=green", "sh", "-c", "echo $COLOUR"}, out: "green\n"},
		"yes and head": {args: []string{"sh", "-c", "yes no | head -n 1"}, out: "no\n"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, tt.args[0]), tt.args[1:]...)
			cmd.Stdin = strings.NewReader(tt.in)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			code := 0
			if ended, ok := errors.AsType[*exec.ExitError](err); ok {
				code = ended.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if string(out) != tt.out || code != tt.code {
				t.Errorf("said %q (%s), code %d, want %q and %d", out, stderr.String(), code, tt.out, tt.code)
			}
		})
	}
}

func TestSignals(t *testing.T) {
	bin := tools(t)
	for name, tt := range map[string]struct {
		text string
		out  string
		code int
	}{
		"a trap ends the shell":           {text: "trap 'echo bye; exit 7' TERM; echo up; sleep 60", out: "bye\n", code: 7},
		"a trap that does not end it":     {text: "trap 'echo bye' TERM; echo up; sleep 60", out: "bye\n", code: 143},
		"no trap":                         {text: "echo up; sleep 60", code: 143},
		"SIG and number name a signal":    {text: "trap 'exit 1' SIGINT; trap 'exit 9' 15; echo up; sleep 60", code: 9},
		"a trap in a loop of short steps": {text: "trap 'exit 5' TERM; echo up; while true; do sleep 0.01; done", code: 5},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "sh"), "-c", tt.text)
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(stdout)
			if line, err := r.ReadString('\n'); line != "up\n" {
				t.Fatalf("said %q, %v", line, err)
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			var rest bytes.Buffer
			if _, err := rest.ReadFrom(r); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if rest.String() != tt.out || cmd.ProcessState.ExitCode() != tt.code {
				t.Errorf("said %q, code %d, want %q and %d", rest.String(), cmd.ProcessState.ExitCode(), tt.out, tt.code)
			}
		})
	}
}

// TestTarKeepsATree packs a folder and unpacks it elsewhere; an archive that points out of the folder writes nothing.
func TestTarKeepsATree(t *testing.T) {
	bin := tools(t)
	from, to := t.TempDir(), t.TempDir()
	script := "mkdir -p tree/a/b && echo one > tree/a/b/one && echo two > tree/two && tar cf - tree"
	pack := exec.CommandContext(t.Context(), filepath.Join(bin, "sh"), "-c", script)
	pack.Dir = from
	archive, err := pack.Output()
	if err != nil {
		t.Fatal(err)
	}
	unpack := exec.CommandContext(t.Context(), filepath.Join(bin, "tar"), "-xmf", "-", "-C", to)
	unpack.Stdin = bytes.NewReader(archive)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for file, want := range map[string]string{"tree/a/b/one": "one\n", "tree/two": "two\n"} {
		if got, err := os.ReadFile(filepath.Join(to, file)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", file, got, err)
		}
	}
	var evil bytes.Buffer
	w := tar.NewWriter(&evil)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "../evil", Typeflag: tar.TypeReg, Mode: 0o600}), w.Close()); err != nil {
		t.Fatal(err)
	}
	unpack = exec.CommandContext(t.Context(), filepath.Join(bin, "tar"), "-xmf", "-", "-C", to)
	unpack.Stdin = &evil
	if out, err := unpack.CombinedOutput(); err == nil {
		t.Errorf("an archive that points out of the folder was taken: %s", out)
	}
	if _, err := os.Lstat(filepath.Join(to, "..", "evil")); err == nil {
		t.Error("a file was written outside the folder")
	}
}

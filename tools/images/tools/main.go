// Command tools is a shell and some thirty small programs in one static file, for containers of demos and tests.
//
// The name it is called by chooses the program. The shell is mvdan.cc/sh with traps for signals added. It replaces
// Debian's busybox so that the image is the same on every machine and needs no package. Each program knows the
// options that tests and examples use, not all that POSIX names.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// A call is one run of one program.
type call struct {
	args     []string // without the program's name
	in       io.Reader
	out, err io.Writer
}

func main() { os.Exit(run(os.Args)) }

func run(argv []string) int {
	name := filepath.Base(argv[0])
	if name == "tools" {
		if len(argv) < 2 {
			fmt.Println("usage: tools PROGRAM [ARGUMENT...]; programs:", strings.Join(names(), " "))
			return 2
		}
		argv = argv[1:]
		name = argv[0]
		if name == "--list" { // for the program that makes the image and its links
			fmt.Println(strings.Join(names(), "\n"))
			return 0
		}
	}
	program := find(name)
	if program == nil {
		fmt.Fprintf(os.Stderr, "tools: no program %q\n", name)
		return 127 // a shell's code for a command that is not there
	}
	out := bufio.NewWriter(os.Stdout)
	c := call{args: argv[1:], in: os.Stdin, out: &prompt{out}, err: os.Stderr}
	code, err := program(c)
	_ = out.Flush()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		if code == 0 {
			code = 1
		}
	}
	return code
}

// prompt flushes after each write that ends a line, so that logs and pipes see lines when they happen.
type prompt struct{ w *bufio.Writer }

func (p *prompt) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	if err == nil && len(b) > 0 && b[len(b)-1] == '\n' {
		err = p.w.Flush()
	}
	return n, err
}

func names() []string {
	return strings.Fields("[ cat cp date echo env false grep head hostname id kill ls mkdir mv nc nslookup printenv printf ps pwd " +
		"rm seq sh sha256sum sleep stty tail tar tee test touch true wc wget yes")
}

// find returns nil for an unknown name. What the shell has built in is run by the shell.
func find(name string) func(call) (int, error) {
	switch name {
	case "sh":
		return shell
	case "[", "echo", "false", "printf", "pwd", "test", "true":
		return func(c call) (int, error) { return builtin(name, c) }
	case "cat", "head", "tail", "wc", "grep", "tee", "sha256sum":
		return map[string]func(call) (int, error){
			"cat": cat, "head": head, "tail": tail, "wc": wc, "grep": grep, "tee": tee, "sha256sum": sha256sum,
		}[name]
	case "cp", "ls", "mkdir", "mv", "rm", "touch":
		return map[string]func(call) (int, error){"cp": cp, "ls": ls, "mkdir": mkdir, "mv": mv, "rm": rm, "touch": touch}[name]
	case "nc", "nslookup", "wget":
		return map[string]func(call) (int, error){"nc": nc, "nslookup": nslookup, "wget": wget}[name]
	case "date", "env", "hostname", "id", "kill", "printenv", "ps", "seq", "sleep", "stty", "tar", "yes":
		return map[string]func(call) (int, error){
			"date": date, "env": env, "hostname": hostname, "id": id, "kill": kill, "printenv": printenv, "ps": ps, "seq": seq,
			"sleep": sleep, "stty": stty, "tar": tar, "yes": yes,
		}[name]
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// shell runs -c TEXT, a file, or standard input; with a terminal it prompts. -e, -u and -x are set's.
func shell(c call) (int, error) {
	text, isText, params := "", false, []string{}
	args := c.args
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "--" {
		for _, flag := range args[0][1:] {
			switch flag {
			case 'c':
				isText = true
			case 'e', 'u', 'x', 'f', 'n':
				params = append(params, "-"+string(flag))
			case 'i', 'l', 's':
			default:
				return 2, fmt.Errorf("unknown option -%c", flag)
			}
		}
		args = args[1:]
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if isText {
		if len(args) == 0 {
			return 2, errors.New("-c needs a text")
		}
		text, args = args[0], args[1:]
		if len(args) > 0 {
			args = args[1:] // the first is $0
		}
	}
	in := c.in
	if !isText && len(args) > 0 {
		content, err := os.ReadFile(args[0])
		if err != nil {
			return 127, err
		}
		text, isText, args = string(content), true, args[1:]
	}
	s := &script{call: c, traps: map[string]string{}}
	if err := s.open(append(append(params, "--"), args...)); err != nil {
		return 2, err
	}
	if isText {
		in = strings.NewReader(text)
	} else if file, ok := c.in.(*os.File); ok && terminal(file) {
		return s.interactive(file)
	}
	return s.run(in)
}

// builtin runs one of the shell's own commands as a program.
func builtin(name string, c call) (int, error) {
	s := &script{call: c, traps: map[string]string{}}
	if err := s.open(append([]string{"--"}, c.args...)); err != nil {
		return 2, err
	}
	return s.run(strings.NewReader("'" + name + `' "$@"`))
}

// A script is one shell. The interpreter knows only the traps EXIT and ERR; here TERM, INT and HUP are added: the
// signal ends the command that runs, then the trap's text runs, then the shell ends with 128 and the signal's number
// unless the text has ended it. A real shell would go on after the text.
type script struct {
	call
	runner *interp.Runner

	mu    sync.Mutex
	traps map[string]string // guarded by mu; an empty text ignores the signal
}

func (s *script) open(params []string) error {
	out, _ := s.out.(*prompt)
	stdout := s.out
	if out != nil {
		stdout = os.Stdout // children write there too, and order matters
	}
	runner, err := interp.New(
		interp.StdIO(s.in, stdout, s.err), interp.Params(params...), interp.CallHandler(s.trap),
		interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return interp.DefaultExecHandler(2 * time.Second) }),
	)
	s.runner = runner
	return err
}

// trap takes the signals out of a trap command and leaves the rest to the interpreter.
func (s *script) trap(_ context.Context, args []string) ([]string, error) {
	if args[0] != "trap" || len(args) < 3 || strings.HasPrefix(args[1], "-") && args[1] != "-" {
		return args, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := args[:2:2]
	for _, name := range args[2:] {
		switch name = strings.TrimPrefix(name, "SIG"); name {
		case "TERM", "15", "INT", "2", "HUP", "1":
			if number, ok := map[string]string{"15": "TERM", "2": "INT", "1": "HUP"}[name]; ok {
				name = number
			}
			if args[1] == "-" {
				delete(s.traps, name)
			} else {
				s.traps[name] = args[1]
			}
		case "0":
			rest = append(rest, "EXIT")
		default:
			rest = append(rest, name)
		}
	}
	if len(rest) == 2 {
		return []string{"true"}, nil
	}
	return rest, nil
}

func (s *script) run(in io.Reader) (int, error) {
	program, err := syntax.NewParser().Parse(in, "")
	if err != nil {
		return 2, err
	}
	return s.execute(program)
}

// execute runs a node until it ends or a signal ends it.
func (s *script) execute(node syntax.Node) (int, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 4) // more than a shell gets before it ends
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	ended := make(chan error, 1)
	go func() { ended <- s.runner.Run(ctx, node) }()
	for {
		select {
		case err := <-ended:
			return status(err)
		case got := <-signals:
			number, _ := got.(syscall.Signal)
			s.mu.Lock()
			text, trapped := s.traps[strings.TrimPrefix(unix.SignalName(number), "SIG")]
			s.mu.Unlock()
			if trapped && text == "" {
				continue
			}
			cancel()
			<-ended //nolint:errcheck // we cut it short ourselves
			if trapped {
				if code, left := s.last(text); left {
					return code, nil
				}
			}
			return 128 + int(number), nil
		}
	}
}

// last runs a trap's text and tells whether it has ended the shell.
func (s *script) last(text string) (code int, left bool) {
	program, err := syntax.NewParser().Parse(strings.NewReader(text), "")
	if err != nil {
		return 2, true
	}
	err = s.runner.Run(context.Background(), program.Stmts[0])
	for _, stmt := range program.Stmts[1:] {
		if s.runner.Exited() {
			break
		}
		err = s.runner.Run(context.Background(), stmt)
	}
	code, _ = status(err)
	return code, s.runner.Exited()
}

func status(err error) (int, error) {
	if code, ok := errors.AsType[interp.ExitStatus](err); ok {
		return int(code), nil
	}
	return 0, err
}

func (s *script) interactive(in *os.File) (int, error) {
	parser := syntax.NewParser()
	fmt.Fprint(os.Stdout, "$ ")
	last := 0
	for stmts, err := range parser.InteractiveSeq(in) {
		switch {
		case err != nil:
			return 2, err
		case parser.Incomplete():
			fmt.Fprint(os.Stdout, "> ")
			continue
		}
		for _, stmt := range stmts {
			if last, err = s.execute(stmt); err != nil {
				fmt.Fprintln(s.err, err)
			}
			if s.runner.Exited() {
				return last, nil
			}
		}
		fmt.Fprint(os.Stdout, "$ ")
	}
	return last, nil
}

func terminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

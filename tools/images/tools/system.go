package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sleep adds its arguments up. As process 1 of a container it must end on SIGTERM by itself, where the kernel would
// ignore the signal.
func sleep(c call) (int, error) {
	var total time.Duration
	for _, arg := range c.args {
		if arg == "infinity" || arg == "inf" {
			total = 1<<63 - 1
			break
		}
		if !strings.ContainsAny(arg, "smhd") {
			arg += "s"
		}
		if days, ok := strings.CutSuffix(arg, "d"); ok {
			n, err := strconv.Atoi(days)
			if err != nil {
				return 2, err
			}
			arg = strconv.Itoa(24*n) + "h"
		}
		d, err := time.ParseDuration(arg)
		if err != nil {
			return 2, err
		}
		total += d
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-time.After(total):
		return 0, nil
	case s := <-signals:
		number, _ := s.(syscall.Signal)
		return 128 + int(number), nil
	}
}

func date(c call) (int, error) {
	now := time.Now()
	format := "%a %b %e %H:%M:%S %Z %Y"
	for _, arg := range c.args {
		switch {
		case arg == "-u":
			now = now.UTC()
		case strings.HasPrefix(arg, "-I"):
			format = "%FT%T%z"
		case strings.HasPrefix(arg, "+"):
			format = arg[1:]
		default:
			return 2, fmt.Errorf("unknown argument %s", arg)
		}
	}
	names := map[byte]string{
		'a': "Mon", 'b': "Jan", 'e': "_2", 'd': "02", 'm': "01", 'Y': "2006", 'H': "15", 'M': "04", 'S': "05", 'Z': "MST",
		'z': "-07:00", 'F': "2006-01-02", 'T': "15:04:05",
	}
	var text strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			text.WriteByte(format[i])
			continue
		}
		i++
		switch layout, ok := names[format[i]]; {
		case ok:
			text.WriteString(now.Format(layout))
		case format[i] == 's':
			text.WriteString(strconv.FormatInt(now.Unix(), 10))
		case format[i] == 'N':
			fmt.Fprintf(&text, "%09d", now.Nanosecond())
		default:
			text.WriteByte(format[i])
		}
	}
	fmt.Fprintln(c.out, text.String())
	return 0, nil
}

func hostname(c call) (int, error) {
	name, err := os.Hostname()
	fmt.Fprintln(c.out, name)
	return 0, err
}

func id(c call) (int, error) {
	opts, _, err := options(c.args, "ugGn", "")
	if err != nil {
		return 2, err
	}
	groups, err := os.Getgroups()
	if err != nil {
		return 1, err
	}
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(groups), " ", ","), "[]")
	switch {
	case opts['u'] != "":
		fmt.Fprintln(c.out, os.Getuid())
	case opts['g'] != "":
		fmt.Fprintln(c.out, os.Getgid())
	case opts['G'] != "":
		fmt.Fprintln(c.out, strings.ReplaceAll(list, ",", " "))
	default:
		fmt.Fprintf(c.out, "uid=%d gid=%d groups=%s\n", os.Getuid(), os.Getgid(), list)
	}
	return 0, nil
}

func printenv(c call) (int, error) {
	if len(c.args) == 0 {
		fmt.Fprintln(c.out, strings.Join(os.Environ(), "\n"))
		return 0, nil
	}
	for _, name := range c.args {
		value, ok := os.LookupEnv(name)
		if !ok {
			return 1, nil
		}
		fmt.Fprintln(c.out, value)
	}
	return 0, nil
}

// env prints the environment, or becomes a program with more of it.
func env(c call) (int, error) {
	args := c.args
	for len(args) > 0 && strings.Contains(args[0], "=") {
		name, value, _ := strings.Cut(args[0], "=")
		if err := os.Setenv(name, value); err != nil {
			return 1, err
		}
		args = args[1:]
	}
	if len(args) == 0 {
		return printenv(call{out: c.out})
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH") + ":") {
		if err := syscall.Exec(filepath.Join(dir, args[0]), args, os.Environ()); !errors.Is(err, syscall.ENOENT) {
			return 126, err
		}
	}
	return 127, fmt.Errorf("no program %s", args[0])
}

func kill(c call) (int, error) {
	number := syscall.SIGTERM
	args := c.args
	if len(args) > 1 && strings.HasPrefix(args[0], "-") {
		word := args[0][1:]
		args = args[1:]
		if word == "s" {
			word, args = args[0], args[1:]
		}
		if n, err := strconv.Atoi(word); err == nil {
			number = syscall.Signal(n)
		} else if number = unix.SignalNum("SIG" + strings.TrimPrefix(word, "SIG")); number == 0 {
			return 2, fmt.Errorf("unknown signal %s", word)
		}
	}
	var faults []error
	for _, arg := range args {
		pid, err := strconv.Atoi(arg)
		if err == nil {
			err = syscall.Kill(pid, number)
		}
		faults = append(faults, err)
	}
	return 0, errors.Join(faults...)
}

func ps(c call) (int, error) {
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 1, err
	}
	fmt.Fprintln(c.out, "  PID COMMAND")
	for _, file := range found {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		fmt.Fprintf(c.out, "%5s %s\n", filepath.Base(filepath.Dir(file)), strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " ")))
	}
	return 0, nil
}

func seq(c call) (int, error) {
	numbers := []int{1, 1, 0} // first, step, last
	for i, arg := range c.args {
		n, err := strconv.Atoi(arg)
		if err != nil || len(c.args) > 3 {
			return 2, fmt.Errorf("usage: seq [FIRST [STEP]] LAST")
		}
		switch {
		case i == len(c.args)-1:
			numbers[2] = n
		default:
			numbers[i] = n
		}
	}
	first, step, last := numbers[0], numbers[1], numbers[2]
	if step == 0 {
		return 2, errors.New("the step is 0")
	}
	for n := first; (step > 0 && n <= last) || (step < 0 && n >= last); n += step {
		fmt.Fprintln(c.out, n)
	}
	return 0, nil
}

func yes(c call) (int, error) {
	text := "y"
	if len(c.args) > 0 {
		text = strings.Join(c.args, " ")
	}
	for {
		if _, err := fmt.Fprintln(c.out, text); err != nil {
			return 0, nil //nolint:nilerr // the reader has gone: that is how yes ends
		}
	}
}

// stty tells the size of the terminal, which is all it knows.
func stty(c call) (int, error) {
	if len(c.args) != 1 || c.args[0] != "size" {
		return 2, errors.New("only stty size is known")
	}
	size, err := unix.IoctlGetWinsize(int(os.Stdin.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 1, err
	}
	fmt.Fprintln(c.out, size.Row, size.Col)
	return 0, nil
}

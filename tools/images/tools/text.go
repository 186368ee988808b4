package main

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// options splits leading one-letter flags off; a flag named in valued takes the rest of its word or the next word.
func options(args []string, flags, valued string) (map[rune]string, []string, error) {
	got := map[rune]string{}
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		word := args[0][1:]
		args = args[1:]
		if word == "-" {
			break
		}
		for i, flag := range word {
			switch {
			case strings.ContainsRune(flags, flag):
				got[flag] = "yes"
				continue
			case !strings.ContainsRune(valued, flag):
				return nil, nil, fmt.Errorf("unknown option -%c", flag)
			}
			value := word[i+1:]
			if value == "" {
				if len(args) == 0 {
					return nil, nil, fmt.Errorf("option -%c needs a value", flag)
				}
				value, args = args[0], args[1:]
			}
			got[flag] = value
			break
		}
	}
	return got, args, nil
}

// each opens the files in turn, or standard input where there is none or "-". It goes on after a missing file.
func each(c call, files []string, do func(name string, r io.Reader) error) (int, error) {
	if len(files) == 0 {
		files = []string{"-"}
	}
	var faults []error
	for _, name := range files {
		if name == "-" {
			faults = append(faults, do("", c.in))
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		faults = append(faults, do(name, file), file.Close())
	}
	return 0, errors.Join(faults...)
}

func cat(c call) (int, error) {
	_, files, err := options(c.args, "u", "")
	if err != nil {
		return 2, err
	}
	return each(c, files, func(_ string, r io.Reader) error {
		buf := make([]byte, 32<<10)
		for {
			n, err := r.Read(buf)
			if _, werr := os.Stdout.Write(buf[:n]); werr != nil { // straight: what goes in must come out at once
				return werr
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
}

// count reads -n N, -N or the usual ten.
func count(args []string) (n int, opts map[rune]string, files []string, err error) {
	args = slices.Clone(args)
	if len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && args[0][1] >= '0' && args[0][1] <= '9' {
		args[0] = "-n" + args[0][1:]
	}
	opts, files, err = options(args, "fF", "n")
	n = 10
	if v, ok := opts['n']; ok && err == nil {
		n, err = strconv.Atoi(v)
	}
	return n, opts, files, err
}

func head(c call) (int, error) {
	n, _, files, err := count(c.args)
	if err != nil {
		return 2, err
	}
	return each(c, files, func(_ string, r io.Reader) error {
		in := bufio.NewScanner(r)
		for i := 0; i < n && in.Scan(); i++ {
			fmt.Fprintln(c.out, in.Text())
		}
		return in.Err()
	})
}

func tail(c call) (int, error) {
	n, opts, files, err := count(c.args)
	if err != nil {
		return 2, err
	}
	_, follow := opts['f']
	if _, also := opts['F']; also {
		follow = true
	}
	return each(c, files, func(name string, r io.Reader) error {
		in := bufio.NewReader(r)
		var last []string
		for {
			line, err := in.ReadString('\n')
			if line != "" {
				last = append(last, line)
			}
			if len(last) > n {
				last = last[1:]
			}
			if err != nil {
				break
			}
		}
		fmt.Fprint(c.out, strings.Join(last, ""))
		for follow && (name != "" && name != "/dev/null") {
			if _, err := io.Copy(os.Stdout, in); err != nil {
				return err
			}
			<-time.After(200 * time.Millisecond) // soon enough for whoever watches a log
		}
		if follow { // tail -f /dev/null is how containers wait for ever
			select {}
		}
		return nil
	})
}

func wc(c call) (int, error) {
	opts, files, err := options(c.args, "lwc", "")
	if err != nil {
		return 2, err
	}
	return each(c, files, func(name string, r io.Reader) error {
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		var words []string
		for flag, n := range map[rune]int{'l': strings.Count(string(content), "\n"), 'w': len(strings.Fields(string(content))), 'c': len(content)} {
			if _, want := opts[flag]; want || len(opts) == 0 {
				words = append(words, fmt.Sprintf("%d%c", n, flag))
			}
		}
		slices.SortFunc(words, func(a, b string) int { return strings.Index("lwc", a[len(a)-1:]) - strings.Index("lwc", b[len(b)-1:]) })
		for i := range words {
			words[i] = words[i][:len(words[i])-1]
		}
		fmt.Fprintln(c.out, strings.TrimSpace(strings.Join(words, " ")+" "+name))
		return nil
	})
}

func grep(c call) (int, error) {
	opts, args, err := options(c.args, "qivcEFwh", "e")
	if err != nil {
		return 2, err
	}
	pattern, ok := opts['e']
	if !ok {
		if len(args) == 0 {
			return 2, errors.New("usage: grep [-qivcEFw] PATTERN [FILE...]")
		}
		pattern, args = args[0], args[1:]
	}
	if _, fixed := opts['F']; fixed {
		pattern = regexp.QuoteMeta(pattern)
	}
	if _, word := opts['w']; word {
		pattern = `\b(?:` + pattern + `)\b`
	}
	if _, fold := opts['i']; fold {
		pattern = "(?i)" + pattern
	}
	match, err := regexp.Compile(pattern)
	if err != nil {
		return 2, err
	}
	_, invert := opts['v']
	_, quiet := opts['q']
	_, total := opts['c']
	found := 0
	code, err := each(c, args, func(_ string, r io.Reader) error {
		in := bufio.NewScanner(r)
		for in.Scan() {
			if match.MatchString(in.Text()) == invert {
				continue
			}
			if found++; !quiet && !total {
				fmt.Fprintln(c.out, in.Text())
			}
		}
		return in.Err()
	})
	switch {
	case err != nil:
		return 2, err
	case total:
		fmt.Fprintln(c.out, found)
	}
	if found == 0 {
		code = 1
	}
	return code, nil
}

func tee(c call) (int, error) {
	opts, files, err := options(c.args, "a", "")
	if err != nil {
		return 2, err
	}
	mode := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if _, ok := opts['a']; ok {
		mode = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	to := []io.Writer{os.Stdout}
	for _, name := range files {
		file, err := os.OpenFile(name, mode, 0o666)
		if err != nil {
			return 1, err
		}
		defer func() { _ = file.Close() }()
		to = append(to, file)
	}
	_, err = io.Copy(io.MultiWriter(to...), c.in)
	return 0, err
}

func sha256sum(c call) (int, error) {
	return each(c, c.args, func(name string, r io.Reader) error {
		sum := sha256.New()
		if _, err := io.Copy(sum, r); err != nil {
			return err
		}
		if name == "" {
			name = "-"
		}
		fmt.Fprintf(c.out, "%x  %s\n", sum.Sum(nil), name)
		return nil
	})
}

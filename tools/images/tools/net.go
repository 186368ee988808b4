package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
)

// fetch is what a command line of wget asks for.
type fetch struct {
	quiet, spider, status bool
	file, target, method  string
	body                  io.Reader
	headers               http.Header
	timeout               time.Duration
}

func parseFetch(args []string) (fetch, error) {
	f := fetch{method: http.MethodGet, headers: http.Header{}, timeout: 30 * time.Second}
	for ; len(args) > 0; args = args[1:] {
		word, value, hasValue := strings.Cut(args[0], "=")
		next := func() string {
			if !hasValue && len(args) > 1 {
				args = args[1:]
				value = args[0]
			}
			return value
		}
		switch word {
		case "-q":
			f.quiet = true
		case "-S":
			f.status = true
		case "--spider":
			f.spider = true
		case "-qO-", "-O-":
			f.quiet, f.file = f.quiet || word == "-qO-", "-"
		case "-O", "-qO":
			f.quiet, f.file = f.quiet || word == "-qO", next()
		case "-T":
			seconds, err := strconv.Atoi(next())
			if err != nil {
				return f, err
			}
			f.timeout = time.Duration(seconds) * time.Second
		case "--post-data":
			f.method, f.body = http.MethodPost, strings.NewReader(next())
			f.headers.Set("Content-Type", "application/x-www-form-urlencoded")
		case "--header":
			name, text, _ := strings.Cut(next(), ":")
			f.headers.Set(strings.TrimSpace(name), strings.TrimSpace(text))
		default:
			if strings.HasPrefix(word, "-") {
				return f, fmt.Errorf("unknown option %s", word)
			}
			f.target = args[0]
		}
	}
	if !strings.Contains(f.target, "://") {
		f.target = "http://" + f.target
	}
	return f, nil
}

// wget fetches one URL. -q quiet, -O FILE (- for standard output), -T seconds, --spider only looks, -S shows the
// status, --post-data TEXT, --header TEXT.
func wget(c call) (int, error) {
	f, err := parseFetch(c.args)
	if err != nil {
		return 2, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, f.method, f.target, f.body)
	if err != nil {
		return 2, err
	}
	req.Header = f.headers
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 4, err // wget's code for network faults
	}
	defer func() { _ = resp.Body.Close() }()
	if f.status {
		fmt.Fprintln(c.err, resp.Proto, resp.Status)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return 8, errors.New("server answered " + resp.Status) // wget's code for error answers
	}
	if f.spider {
		return 0, nil
	}
	return save(c, f.file, req.URL.Path, resp.Body, f.quiet)
}

func save(c call, file, urlPath string, body io.Reader, quiet bool) (int, error) {
	if file == "-" {
		_, err := io.Copy(c.out, body)
		return 0, err
	}
	if file == "" {
		if file = path.Base(urlPath); file == "/" || file == "." {
			file = "index.html"
		}
	}
	out, err := os.Create(file)
	if err != nil {
		return 3, err // wget's code for file faults
	}
	n, err := io.Copy(out, body)
	if !quiet {
		fmt.Fprintf(c.err, "%s: %d bytes\n", file, n)
	}
	return 0, errors.Join(err, out.Close())
}

// nc connects to HOST PORT, or with -l waits for one connection on -p PORT or PORT. -z only looks, -w is a timeout in
// seconds, -u is UDP.
func nc(c call) (int, error) {
	opts, args, err := options(c.args, "lzvnut", "wp")
	if err != nil {
		return 2, err
	}
	timeout := 10 * time.Second
	if v, ok := opts['w']; ok {
		seconds, err := strconv.Atoi(v)
		if err != nil {
			return 2, err
		}
		timeout = time.Duration(seconds) * time.Second
	}
	var conn net.Conn
	if _, listen := opts['l']; listen {
		if conn, err = accept(opts['p'], args); err != nil {
			return 1, err
		}
	} else {
		if len(args) != 2 {
			return 2, errors.New("usage: nc [-ztu] [-w SECONDS] HOST PORT | nc -l [-p] PORT")
		}
		network := "tcp"
		if opts['u'] != "" {
			network = "udp"
		}
		dialer := net.Dialer{Timeout: timeout}
		if conn, err = dialer.Dial(network, net.JoinHostPort(args[0], args[1])); err != nil {
			return 1, err
		}
	}
	defer func() { _ = conn.Close() }()
	if opts['z'] != "" {
		return 0, nil
	}
	go func() {
		_, _ = io.Copy(conn, c.in)
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	_, err = io.Copy(os.Stdout, conn)
	return 0, err
}

func accept(port string, args []string) (net.Conn, error) {
	if port == "" && len(args) > 0 {
		port = args[len(args)-1]
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", ":"+port)
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }()
	return listener.Accept()
}

func nslookup(c call) (int, error) {
	if len(c.args) == 0 {
		return 2, errors.New("usage: nslookup NAME [SERVER]")
	}
	resolver := &net.Resolver{PreferGo: true}
	if len(c.args) > 1 {
		server := net.JoinHostPort(c.args[1], "53")
		resolver.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, server)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found, err := resolver.LookupHost(ctx, c.args[0])
	for _, address := range found {
		fmt.Fprintf(c.out, "Name: %s\nAddress: %s\n", c.args[0], address)
	}
	return 0, err
}

// Command http is a small web server for demos and tests of probes, volumes and graceful stops.
//
// It serves a folder at /, and answers /healthz, /readyz, /env, /hostname. POST /fail makes /healthz answer 500 and
// POST /mend ends that; POST /unready and POST /ready do the same to /readyz; POST /exit?code=N ends the process.
// Flags let it misbehave by itself. On SIGTERM it says so, finishes what is open, waits -stop-delay, and ends with 0.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

type options struct {
	listen, root          string
	startDelay, stopDelay time.Duration
	readyAfter, failAfter time.Duration
	exitAfter             time.Duration
	exitCode              int
	ignoreTerm            bool
}

func main() { os.Exit(run(os.Args[1:], os.Stdout)) }

func run(args []string, out io.Writer) int {
	var o options
	flags := flag.NewFlagSet("http", flag.ContinueOnError)
	flags.StringVar(&o.listen, "listen", ":8080", "address to listen on")
	flags.StringVar(&o.root, "root", "/www", "folder to serve at /")
	flags.DurationVar(&o.startDelay, "start-delay", 0, "wait before listening (for startup probes)")
	flags.DurationVar(&o.readyAfter, "ready-after", 0, "/readyz answers 503 until this long after the start")
	flags.DurationVar(&o.failAfter, "fail-after", 0, "/healthz answers 500 from then on; 0: never")
	flags.DurationVar(&o.exitAfter, "exit-after", 0, "end by itself after this time; 0: never")
	flags.IntVar(&o.exitCode, "exit-code", 0, "exit code of -exit-after")
	flags.DurationVar(&o.stopDelay, "stop-delay", 0, "wait this long after SIGTERM before ending")
	flags.BoolVar(&o.ignoreTerm, "ignore-term", false, "do not end on SIGTERM")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := serve(o, out); err != nil {
		if code, ok := errors.AsType[exit](err); ok {
			return int(code)
		}
		fmt.Fprintln(out, "http:", err)
		return 1
	}
	return 0
}

// exit is an exit code that was asked for.
type exit int

func (e exit) Error() string { return "exit " + strconv.Itoa(int(e)) }

func serve(o options, out io.Writer) error {
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM, syscall.SIGINT)
	timer := func(d time.Duration) <-chan time.Time {
		if d == 0 {
			return nil
		}
		return time.After(d)
	}
	asked := make(chan exit, 1)
	select {
	case <-timer(o.startDelay + 1): // a zero delay passes at once
	case <-terms:
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", o.listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: newHandler(o, out, asked), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	fmt.Fprintln(out, "http: serving", o.root, "on", listener.Addr())
	ended := timer(o.exitAfter)
	for {
		select {
		case err := <-failed:
			return err
		case code := <-asked:
			return code
		case <-ended:
			return exit(o.exitCode)
		case s := <-terms:
			if o.ignoreTerm {
				fmt.Fprintln(out, "http: ignoring", s)
				continue
			}
			fmt.Fprintln(out, "http: stopping on", s)
			<-time.After(o.stopDelay)
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			err := server.Shutdown(ctx)
			cancel()
			fmt.Fprintln(out, "http: stopped")
			return err
		}
	}
}

func newHandler(o options, out io.Writer, asked chan<- exit) http.Handler {
	var broken, unready atomic.Bool
	began := time.Now()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, good bool, code int) {
		if !good {
			w.WriteHeader(code)
			fmt.Fprintln(w, "no")
			return
		}
		fmt.Fprintln(w, "ok")
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		late := o.failAfter > 0 && time.Since(began) >= o.failAfter
		answer(w, !broken.Load() && !late, http.StatusInternalServerError)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, !unready.Load() && time.Since(began) >= o.readyAfter, http.StatusServiceUnavailable)
	})
	mux.HandleFunc("GET /env", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, strings.Join(os.Environ(), "\n"))
	})
	mux.HandleFunc("GET /hostname", func(w http.ResponseWriter, _ *http.Request) {
		name, _ := os.Hostname()
		fmt.Fprintln(w, name)
	})
	for path, set := range map[string]func(){
		"/fail": func() { broken.Store(true) }, "/mend": func() { broken.Store(false) },
		"/unready": func() { unready.Store(true) }, "/ready": func() { unready.Store(false) },
	} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, _ *http.Request) { set(); fmt.Fprintln(w, "ok") })
	}
	mux.HandleFunc("POST /exit", func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.FormValue("code"))
		w.Header().Set("Content-Length", "3") // without it the answer ends only after this function
		fmt.Fprintln(w, "ok")
		_ = http.NewResponseController(w).Flush() // or the process may end before the answer has left
		asked <- exit(code)
	})
	mux.Handle("GET /", http.FileServer(http.Dir(o.root)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(out, time.Now().UTC().Format(time.RFC3339), r.RemoteAddr, r.Method, r.URL.Path)
		mux.ServeHTTP(w, r)
	})
}

package wan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

const (
	// dialTimeout is ample for the host's own loopback.
	dialTimeout = 5 * time.Second
	// chunkSize is the size of one read: the payload of one TLS record.
	chunkSize = 16 << 10
)

// Config of a Forwarder.
type Config struct {
	// Namespace is the network namespace to listen in; "" is the present one. Targets are always dialled from the
	// present one.
	Namespace string `json:"namespace,omitempty"`
	// Control is the path of the unix socket that accepts commands.
	Control string  `json:"control"`
	Routes  []Route `json:"routes"`
	// Edges names the gateway of each source address, for routes that several gateways share.
	Edges map[string]string `json:"edges,omitempty"`
}

// Route forwards connections from Listen to Target.
type Route struct {
	Listen string `json:"listen"`
	Target string `json:"target"`
	// Edge is the gateway that alone uses the route; "" if the source address identifies the gateway.
	Edge string `json:"edge,omitempty"`
}

// Link is the Forwarder's state of one gateway's link.
type Link struct {
	Cut  bool `json:"cut"`
	Loud bool `json:"loud,omitempty"`
	// Shape is the simulated quality of the link.
	Shape       Shape `json:"shape,omitzero"`
	Connections int   `json:"connections"`
	// UpBytes counts the bytes from the gateway to the cloud since the Forwarder started, DownBytes the other direction.
	UpBytes   int64 `json:"upBytes"`
	DownBytes int64 `json:"downBytes"`
}

// Forwarder moves bytes between gateways and the hub, and drops them on command.
type Forwarder struct {
	cfg   Config
	log   *zap.Logger
	links map[string]*edgeLink // never changes after New
}

// New returns a Forwarder that has no open connection yet.
func New(cfg Config, log *zap.Logger) *Forwarder {
	f := &Forwarder{cfg: cfg, log: log.Named("wan"), links: map[string]*edgeLink{}}
	for _, edge := range cfg.Edges {
		f.links[edge] = newLink()
	}
	for _, r := range cfg.Routes {
		if r.Edge != "" && f.links[r.Edge] == nil {
			f.links[r.Edge] = newLink()
		}
	}
	return f
}

// Start forwards until ctx ends. It returns an error at once if it cannot listen.
func (f *Forwarder) Start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, r := range f.cfg.Routes {
		l, err := Listen(f.cfg.Namespace, r.Listen)
		if err != nil {
			return fmt.Errorf("listen for gateways: %w", err)
		}
		defer func() { _ = l.Close() }()
		g.Go(func() error { return f.acceptConns(gctx, g, l, r) })
	}
	if err := os.Remove(f.cfg.Control); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove stale control socket: %w", err)
	}
	var lc net.ListenConfig
	control, err := lc.Listen(ctx, "unix", f.cfg.Control)
	if err != nil {
		return fmt.Errorf("listen for orders: %w", err)
	}
	server := &http.Server{Handler: f.controlHandler(), ReadHeaderTimeout: dialTimeout, IdleTimeout: time.Minute}
	g.Go(func() error {
		if err := server.Serve(control); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-gctx.Done()
		return server.Close()
	})
	f.log.Info("forwarding", zap.Int("routes", len(f.cfg.Routes)), zap.String("namespace", f.cfg.Namespace))
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

func (f *Forwarder) acceptConns(ctx context.Context, g *errgroup.Group, l net.Listener, r Route) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("accept at %s: %w", r.Listen, err)
		}
		edge := r.Edge
		if edge == "" {
			edge = f.edgeOf(c.RemoteAddr())
		}
		line := f.links[edge]
		if line == nil {
			f.log.Warn("refused a stranger", zap.Stringer("address", c.RemoteAddr()))
			_ = c.Close()
			continue
		}
		g.Go(func() error {
			if err := line.forwardConn(ctx, c, r.Target); err != nil {
				f.log.Debug("connection ended", zap.String("node", edge), zap.Error(err))
			}
			return nil // one broken connection must not end the others
		})
	}
}

func (f *Forwarder) edgeOf(address net.Addr) string {
	host, _, err := net.SplitHostPort(address.String())
	if err != nil {
		return ""
	}
	return f.cfg.Edges[host]
}

func (f *Forwarder) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /links", func(w http.ResponseWriter, _ *http.Request) {
		links := make(map[string]Link, len(f.links))
		for edge, l := range f.links {
			links[edge] = l.snapshot()
		}
		_ = json.NewEncoder(w).Encode(links) // the client has gone
	})
	order := func(do func(l *edgeLink, r *http.Request)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			l := f.links[r.PathValue("edge")]
			if l == nil {
				http.Error(w, "no such gateway", http.StatusNotFound)
				return
			}
			do(l, r)
		}
	}
	mux.HandleFunc("POST /links/{edge}/cut", order(func(l *edgeLink, r *http.Request) {
		switch only := r.FormValue("only"); only {
		case "up":
			l.cut(false, up)
		case "down":
			l.cut(false, down)
		default:
			l.cut(r.FormValue("loud") != "", up, down)
		}
	}))
	mux.HandleFunc("POST /links/{edge}/heal", order(func(l *edgeLink, _ *http.Request) { l.heal() }))
	mux.HandleFunc("POST /links/{edge}/reset", order(func(l *edgeLink, _ *http.Request) { l.reset() }))
	mux.HandleFunc("POST /links/{edge}/shape", func(w http.ResponseWriter, r *http.Request) {
		shape, err := parseShape(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		order(func(l *edgeLink, _ *http.Request) { l.setShape(shape) })(w, r)
	})
	return mux
}

// ShapePath is the path of the control socket that gives a gateway's link a shape, by POST.
func ShapePath(edge string, shape Shape) string {
	return "/links/" + edge + "/shape?" + shape.encodeQuery()
}

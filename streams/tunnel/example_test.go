package tunnel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/streams/tunnel"
)

// A node serves HTTP on a port of its own, without any open socket; the cloud gets a page from it.
func Example() {
	if err := runExample(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// hello from gw-17
	// offline: true
}

func runExample(ctx context.Context) error {
	ns, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		return err
	}
	ns.Start()
	defer ns.WaitForShutdown()
	defer ns.Shutdown()
	cloud, err := nats.Connect("", nats.InProcessServer(ns))
	if err != nil {
		return err
	}
	defer cloud.Close()
	gateway, err := nats.Connect("", nats.InProcessServer(ns))
	if err != nil {
		return err
	}
	defer gateway.Close()

	// On the node.
	log := zap.NewNop()
	node, err := tunnel.NewServer("gw-17", gateway, tunnel.Config{}, tunnel.NewMetrics(nil), log)
	if err != nil {
		return err
	}
	listener, err := node.Listen(80)
	if err != nil {
		return err
	}
	page := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "hello from gw-17")
	})}

	// In the cloud.
	dialer, err := tunnel.NewDialer(cloud, tunnel.Config{}, tunnel.NewMetrics(nil), log)
	if err != nil {
		return err
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var parts errgroup.Group
	parts.Go(func() error { return node.Start(ctx) })
	parts.Go(func() error { return dialer.Start(ctx) })
	parts.Go(func() error { _ = page.Serve(listener); return nil }) // ends with the listener, which ends with node
	<-node.Ready()
	<-dialer.Ready()

	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.Dial(tunnel.WithLabel(ctx, "jane"), "gw-17", 80)
		},
		DisableKeepAlives: true,
	}}
	if err := fetchPage(ctx, client); err != nil {
		return err
	}
	_, err = dialer.Dial(ctx, "gw-18", 80)
	fmt.Println("offline:", errors.Is(err, tunnel.ErrOffline))

	stop()
	return parts.Wait()
}

func fetchPage(ctx context.Context, client *http.Client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://gw-17/", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	fmt.Println(string(body))
	return err
}

package store_test

import (
	"context"
	"fmt"
	"os"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/store"
)

// A gateway's server without a hub, its store, one object written and read.
func Example() {
	dir, err := os.MkdirTemp("", "frond-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server, err := leaf.New(leaf.Config{Node: "gw-17", Dir: dir}, zap.NewNop())
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Start(ctx) })
	<-server.Ready()
	fmt.Println(writeAndRead(ctx, server))
	stop()
	fmt.Println("ended:", g.Wait())
	// Output:
	// configmaps default/page: {"metadata":{"name":"page","uid":"1"}}
	// <nil>
	// ended: <nil>
}

func writeAndRead(ctx context.Context, server *leaf.Server) error {
	nc, err := server.Conn("example")
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	st, err := store.Open(ctx, js, store.Config{}, zap.NewNop())
	if err != nil {
		return err
	}
	page := wire.Key{Resource: "configmaps", Namespace: "default", Name: "page"}
	if _, err := st.Put(ctx, page, []byte(`{"metadata":{"name":"page","uid":"1"}}`), nil); err != nil {
		return err
	}
	entry, err := st.Get(page) // from memory; on disk since Put returned
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s\n", entry.Key.Human(), entry.Object)
	return nil
}

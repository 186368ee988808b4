// Package tunnel carries byte streams from the cloud to nodes over NATS: a Dialer in the cloud, a Server with
// net.Listeners on the node, and a net.Conn between them with half-close, deadlines and errors that hold the reason.
//
// In the cloud:
//
//	d, err := tunnel.NewDialer(nc, tunnel.Config{}, tunnel.NewMetrics(registry), log) // starts nothing
//	go d.Start(ctx)                                   // blocks until ctx ends; nil
//	conn, err := d.Dial(tunnel.WithLabel(ctx, "jane"), "gw-17", 10250)   // *Conn, a net.Conn
//	  errors.Is(err, tunnel.ErrOffline)               // the node is not connected: at once, or after 2.5 s of silence
//	  errors.As(err, new(*tunnel.RefusedError))       // the node refused: its Code and Text give the reason
//	conn, err = d.DialAddress(ctx, "gw-17", podAddrPort)  // to an address that the node reaches and permits
//	d.Drop("gw-17", "certificate revoked")            // breaks all streams to a node now
//
// On the node:
//
//	s, err := tunnel.NewServer("gw-17", nc, tunnel.Config{}, tunnel.NewMetrics(registry), log)
//	l, err := s.Listen(10250)                         // *Listener, a net.Listener; streams to other ports are refused
//	a, err := s.ListenAddresses()                     // streams to addresses: check in.Target() before Accept
//	go s.Start(ctx)
//	conn, err := l.Accept()                           // a net.Conn; or, to connect onwards before accepting:
//	in, err := l.Next()                               // *Incoming: in.Port(), in.Label(), then one of
//	conn, err := in.Accept()                          //   *Conn; the dial in the cloud succeeds
//	in.Refuse("the kubelet does not listen: " + err.Error()) // the dial in the cloud fails with *RefusedError
//
// On both sides Conn has CloseWrite (half-close), Reset(reason) (the peer's Read and Write fail with a *BrokenError that
// holds the reason) and Label. After Start has ended, Dial, Accept and all streams fail.
//
// Guarantees: bytes arrive in order and once, or the stream breaks with a *BrokenError, never silently. That includes a lost message,
// a vanished peer (both ends detect it within 15 s) and a violation of the protocol. A reader that stalls delays its own stream only and
// takes at most its window of memory. Only the cloud opens streams, only to ports that the node listens on and addresses that it permits.
// Nothing is stored.
//
// DESIGN.md describes the protocol and the behaviour on each fault.
package tunnel

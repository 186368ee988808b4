// Package tunnel carries byte streams from the cloud to nodes over NATS: a Dialer in the cloud, a Server with
// net.Listeners on the node, and between them a net.Conn with half-close, deadlines and errors that say what happened.
//
// In the cloud:
//
//	d, err := tunnel.NewDialer(nc, tunnel.Config{}, tunnel.NewMetrics(registry), log) // starts nothing
//	go d.Start(ctx)                                   // blocks until ctx ends; nil
//	conn, err := d.Dial(tunnel.WithLabel(ctx, "jane"), "gw-17", 10250)   // *Conn, a net.Conn
//	  errors.Is(err, tunnel.ErrOffline)               // the node is not connected: at once, or after 2.5 s of silence
//	  errors.As(err, new(*tunnel.RefusedError))       // the node said no: its Code and Text say why
//	conn, err = d.DialAddress(ctx, "gw-17", podAddrPort)  // to an address that the node reaches and lets through
//	d.Drop("gw-17", "certificate revoked")            // breaks all streams to a node now
//
// On the node:
//
//	s, err := tunnel.NewServer("gw-17", nc, tunnel.Config{}, tunnel.NewMetrics(registry), log)
//	l, err := s.Listen(10250)                         // *Listener, a net.Listener; what is not listened on is refused
//	a, err := s.ListenAddresses()                     // what asks for an address: in.Target(), to be judged before Accept
//	go s.Start(ctx)
//	conn, err := l.Accept()                           // a net.Conn; or, to connect onwards before saying yes:
//	in, err := l.Next()                               // *Incoming: in.Port(), in.Label(), then one of
//	conn, err := in.Accept()                          //   *Conn; the dial in the cloud succeeds
//	in.Refuse("the kubelet does not listen: " + err.Error()) // the dial in the cloud fails with *RefusedError
//
// On both sides Conn has CloseWrite (half-close), Reset(reason) (the peer's Read and Write fail with a *BrokenError that
// holds the reason) and Label. After Start has ended, Dial, Accept and all streams fail.
//
// Guarantees: bytes arrive in order and once, or the stream breaks with a *BrokenError, never silently: also when a
// message was lost, the peer vanished (both ends notice within 15 s) or broke the protocol. A reader that stalls holds
// up its own stream only, and at most its window of memory. Only the cloud opens streams, only towards ports that the
// node listens on and addresses that it lets through. Nothing is stored.
//
// DESIGN.md tells how, and what happens on each fault.
package tunnel

// Package leaf runs the NATS server inside an edge node and keeps its link to the hub.
//
// It owns the server, its store folder and the link; it knows no stream and no subject. The server has no listener: clients come from
// Server.Conn, inside the process. They work while the link is down. Every message acked to them is synced to disk and survives a kill.
//
// A dead or half-open link is found within 30 s and dialled again without limit: within 2 s, then at growing, jittered intervals. Stop
// every client before ending Start.
package leaf

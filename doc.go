// Package frond is Kubernetes for gateways behind NAT and unreliable networks, carried by NATS JetStream. It contains no code:
// this comment is a tour of the packages, by the process that links them. docs/DESIGN.md has the whole design, and in its §4 a
// table of all packages.
//
// # API
//
// The packages below api are what others may rely on: [github.com/frond-edge/frond/api/wire] (object keys and messages),
// [github.com/frond-edge/frond/api/config] (the configuration files), [github.com/frond-edge/frond/api/names] (labels,
// annotations, conditions and reasons), [github.com/frond-edge/frond/api/identity] (the NodeIdentity and tokens),
// [github.com/frond-edge/frond/api/apps] (the NodeGroup), [github.com/frond-edge/frond/api/devices] (KubeEdge's devices),
// [github.com/frond-edge/frond/api/operations] and [github.com/frond-edge/frond/api/jobs] (KubeEdge's jobs and their steps) and
// [github.com/frond-edge/frond/api/inspect] (the output of frond status).
//
// # Wire protocol
//
// Both halves link the packages below [github.com/frond-edge/frond/streams], which alone know NATS subjects:
//
//   - [github.com/frond-edge/frond/streams/subject] and [github.com/frond-edge/frond/streams/topology]: the names of subjects,
//     and the streams and consumers
//   - [github.com/frond-edge/frond/streams/publish] and [github.com/frond-edge/frond/streams/deliver]: desired state, down
//   - [github.com/frond-edge/frond/streams/outbox] and [github.com/frond-edge/frond/streams/consume]: reports and events, up
//   - [github.com/frond-edge/frond/streams/call]: requests and replies, commands, heartbeats
//   - [github.com/frond-edge/frond/streams/tunnel]: byte streams, as net.Conn and net.Listener
//
// # cloudcore
//
//   - [github.com/frond-edge/frond/cloud]: assembles cloudcore
//   - [github.com/frond-edge/frond/cloud/membership]: the live replicas, their leases, and which of them owns a node
//   - [github.com/frond-edge/frond/cloud/identity]: admits gateways and records their keys
//   - [github.com/frond-edge/frond/cloud/gateway]: connects the apiserver and Prometheus to nodes, over tunnels
//   - [github.com/frond-edge/frond/controllers/desired]: publishes the desired state of each node
//   - [github.com/frond-edge/frond/controllers/reports]: applies the reports of nodes
//   - [github.com/frond-edge/frond/controllers/nodes]: renews the leases of nodes and writes their conditions
//   - [github.com/frond-edge/frond/controllers/groups]: carries out NodeGroups; below it are who is in which group, and maintenance windows
//   - [github.com/frond-edge/frond/controllers/jobs]: carries out jobs of gateways, step by step
//
// # edgecore
//
//   - [github.com/frond-edge/frond/edged/agent]: assembles edgecore, from those below and other packages of edged
//   - [github.com/frond-edge/frond/leaf]: the NATS server inside a node, and its link to the hub
//   - [github.com/frond-edge/frond/leaf/store]: the node's objects, kept in the leaf's own JetStream
//   - [github.com/frond-edge/frond/leaf/localapi]: serves the stored objects as a Kubernetes API, to the kubelet and to pods
//   - [github.com/frond-edge/frond/edged/kubelet]: the upstream kubelet, pointed at the local API
//   - [github.com/frond-edge/frond/edged/hollow]: a container runtime without containers
//   - [github.com/frond-edge/frond/edged/jobs]: does the gateway's steps of jobs
//   - [github.com/frond-edge/frond/edged/nodetunnel]: joins the cloud's tunnels to the kubelet and to pods
//   - [github.com/frond-edge/frond/edged/enroll]: a gateway's side of its identity: key, enrolment, renewal, time
//
// Not linked yet: [github.com/frond-edge/frond/devicetwin], what a gateway knows of its devices, with their MQTT topics and broker.
//
// # frond and frond-dev
//
//   - [github.com/frond-edge/frond/internal/install], [github.com/frond-edge/frond/internal/backup]: what frond init and frond
//     backup do
//   - [github.com/frond-edge/frond/edged/hostsetup]: turns a machine into a gateway, for frond join
//   - [github.com/frond-edge/frond/internal/devcluster]: runs a complete cluster on one machine
//   - [github.com/frond-edge/frond/internal/toolchain]: builds the Kubernetes control plane, containerd and other tools
//
// # Tests
//
//   - [github.com/frond-edge/frond/test/e2e], [github.com/frond-edge/frond/test/attacks],
//     [github.com/frond-edge/frond/test/faults]: end-to-end tests, attacks by a stolen gateway, random faults
//   - [github.com/frond-edge/frond/test/kit]: waits; below it real hubs, leafs and control planes for tests
//   - [github.com/frond-edge/frond/loadtest]: measures
package frond

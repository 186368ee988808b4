// Package frond is Kubernetes for gateways behind NAT and unreliable networks, carried by NATS JetStream. It contains no code:
// this comment is a tour of the packages, grouped by task. docs/DESIGN.md has the whole design.
//
// # API
//
// The packages below api are what others may rely on.
//
//   - [github.com/frond-edge/frond/api/wire]: object keys, messages, payloads of calls
//   - [github.com/frond-edge/frond/api/config]: the configuration files of cloudcore and edgecore
//   - [github.com/frond-edge/frond/api/identity]: the NodeIdentity, tokens, what a link shows
//   - [github.com/frond-edge/frond/api/apps]: the NodeGroup
//   - [github.com/frond-edge/frond/api/inspect]: the output of frond status
//
// # Wire protocol
//
//   - [github.com/frond-edge/frond/streams]: subjects, streams, consumers, the envelope, and the loops that publish, deliver
//     and report; no other package knows NATS subjects
//   - [github.com/frond-edge/frond/streams/tunnel]: byte streams from the cloud to a node: a dialer and a net.Listener over
//     NATS subjects
//
// # Gateway
//
//   - [github.com/frond-edge/frond/leaf]: the NATS server inside a node, and its link to the hub
//   - [github.com/frond-edge/frond/leaf/store]: the node's objects, kept in the leaf's own JetStream
//   - [github.com/frond-edge/frond/leaf/store/seal]: encrypts the secret objects of the store
//   - [github.com/frond-edge/frond/leaf/localapi]: serves the stored objects as a Kubernetes API, to the kubelet and to pods
//   - [github.com/frond-edge/frond/leaf/access]: authenticates and authorizes the callers of the local API
//   - [github.com/frond-edge/frond/edged]: the upstream kubelet, pointed at the local API
//   - [github.com/frond-edge/frond/edged/hollow]: a container runtime without containers
//   - [github.com/frond-edge/frond/edged/enroll]: a gateway's side of its identity: key, enrolment, renewal, time
//   - [github.com/frond-edge/frond/edged/hostsetup]: checks a machine and turns it into a gateway, for frond join;
//     deploy/systemd has its unit
//
// # Controllers
//
//   - [github.com/frond-edge/frond/controllers/desired]: publishes the desired state of each node
//   - [github.com/frond-edge/frond/controllers/reports]: applies the reports of nodes
//   - [github.com/frond-edge/frond/controllers/nodes]: renews the leases of nodes
//   - [github.com/frond-edge/frond/controllers/scopes]: decides which resources the components on a node may watch
//   - [github.com/frond-edge/frond/controllers/csrs]: decides which certificates a node gets
//   - [github.com/frond-edge/frond/controllers/evictions]: deletes pods of protected namespaces from gateways
//   - [github.com/frond-edge/frond/controllers/holds]: reports suspected mass deletions, which wait for confirmation
//   - [github.com/frond-edge/frond/controllers/autonomy]: keeps the pods of a disconnected node from eviction
//   - [github.com/frond-edge/frond/controllers/ports]: allocates a port for each node
//   - [github.com/frond-edge/frond/deploy/rbac]: cloudcore's permissions
//   - [github.com/frond-edge/frond/deploy/crd]: the custom resource definitions
//   - [github.com/frond-edge/frond/deploy/policy]: admission policies that keep the control plane off gateways and its keys
//     from accidental deletion
//
// # Cloud
//
//   - [github.com/frond-edge/frond/cloud/identity]: admits gateways: answers the hub about links, records gateways' keys,
//     closes the links of gateways that are no longer admitted
//   - [github.com/frond-edge/frond/cloud/gateway]: connects the apiserver and Prometheus to nodes: HTTP CONNECT and a few
//     metrics paths, over tunnels
//   - [github.com/frond-edge/frond/cloud/inspect]: answers frond status and frond sync
//
// # Programs
//
// The programs are in cmd.
//
//   - [github.com/frond-edge/frond/cloud]: assembles cloudcore
//   - [github.com/frond-edge/frond/edged/agent]: assembles edgecore
//   - [github.com/frond-edge/frond/internal/install]: makes the keys, certificates and configuration of a cluster for frond
//     init, and join tokens
//   - [github.com/frond-edge/frond/internal/backup]: saves and restores them, for frond backup
//   - [github.com/frond-edge/frond/internal/hubconf]: writes the configuration of the hub's servers
//   - [github.com/frond-edge/frond/test/kit/hubtest]: runs such a hub in a test
//
// Small packages with several users:
//
//   - [github.com/frond-edge/frond/internal/lifecycle]: starts and stops parts in order
//   - [github.com/frond-edge/frond/internal/program]: the command line of cloudcore and edgecore
//   - [github.com/frond-edge/frond/internal/logging]: the one logger of a process, and the bridge from libraries' loggers
//   - [github.com/frond-edge/frond/internal/splice]: joins two byte streams
//   - [github.com/frond-edge/frond/internal/health]: serves /metrics, /livez and /readyz
//   - [github.com/frond-edge/frond/internal/certs]: the TLS side of Frond's listeners
//   - [github.com/frond-edge/frond/edged/hostaddr]: adds addresses to the machine, for listeners
//   - [github.com/frond-edge/frond/internal/buildinfo]: the version of the binary
//
// # Development and tests
//
//   - [github.com/frond-edge/frond/internal/devcluster]: runs a complete cluster on one machine, for frond dev and the
//     end-to-end tests
//   - [github.com/frond-edge/frond/internal/devcluster/pki]: makes the certificates of its Kubernetes
//   - [github.com/frond-edge/frond/test/e2e]: the end-to-end tests
//   - [github.com/frond-edge/frond/internal/toolchain]: builds the Kubernetes control plane, containerd and other tools from
//     the modules below tools
//   - [github.com/frond-edge/frond/test/kit/kubetest]: starts a control plane for tests
//   - [github.com/frond-edge/frond/test/kit]: waits in tests
//   - [github.com/frond-edge/frond/loadtest]: measures
//   - [github.com/frond-edge/frond/test/faults]: breaks a development cluster by a seeded plan and checks what happened
//     to each node
//   - [github.com/frond-edge/frond/internal/history]: the record of each gateway's past that this check reads
//   - [github.com/frond-edge/frond/internal/failpoint]: kills a process between two steps
//   - [github.com/frond-edge/frond/test/faultfs]: a disk that loses what was not synced
//   - [github.com/frond-edge/frond/test/attacks]: attempts what a stolen gateway may attempt
package frond

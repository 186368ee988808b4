// Package frond is Kubernetes for gateways behind bad networks, carried by NATS JetStream. It holds no code: this is the
// tour, one paragraph a room. DESIGN.md in docs/ is the whole story.
//
// api holds what others may rely on: wire (object keys, messages, payloads of calls), config (the files of cloudcore
// and edgecore), identity (the NodeIdentity, tokens, what a link shows), apps (the NodeGroup) and inspect (what frond status
// prints).
//
// streams is the wire: subjects, streams, consumers, the envelope, and the loops that publish, deliver and report. It
// alone knows NATS subjects.
//
// streams/tunnel carries byte streams from the cloud to a node: a dialer and a net.Listener over NATS subjects.
//
// leaf is the NATS server inside a node and its link to the hub. leaf/store keeps the node's objects in the leaf's own
// JetStream, sealed by leaf/store/seal where they are secret; leaf/localapi serves them as a Kubernetes API, to the kubelet and to pods; leaf/access judges who may what.
//
// edged is the upstream kubelet, pointed at the local API. edged/hollow is a container runtime without containers.
//
// controllers/desired publishes what each node should have, controllers/reports applies what nodes say,
// controllers/nodes keeps their leases, controllers/scopes decides what components at a node may watch,
// controllers/csrs which certificates a node gets. controllers/evictions deletes pods of protected namespaces from gateways. controllers/holds waits for a word before what looks like a mass delete,
// controllers/autonomy keeps pods of a node that is away, controllers/ports gives each node a port. deploy/rbac is what cloudcore
// may do, deploy/crd are the kinds, deploy/policy keeps the control plane off gateways and its keys from being deleted by mistake.
//
// cloud/gateway is the apiserver's and Prometheus' way to nodes: HTTP CONNECT and a few paths of metrics, over tunnels.
//
// cloud/identity decides who comes in: it answers the hub about links, records gateways' keys, and closes the links of who may
// not stay. cloud/inspect answers frond status and frond sync.
//
// internal/hubconf writes the configuration of the hub's servers; internal/hubconf/hubtest runs such a hub in a test.
//
// cloud is cloudcore put together, internal/edgenode is edgecore put together; cmd holds the programs.
//
// internal/install makes the keys, certificates and configuration of a cluster, for `frond init`, and tokens to join with. internal/backup
// saves and restores them, for `frond backup`.
//
// internal/devcluster makes all of it real on one machine, for `frond dev` and for internal/e2e; internal/toolchain
// builds the Kubernetes control plane, containerd and the rest from modules (tools/…); internal/kubetest starts a
// control plane for tests, internal/await waits in them; internal/devcluster/pki makes Kubernetes' certificates. loadtest measures. internal/lifecycle,
// internal/program, internal/logging, internal/splice, internal/health, internal/certs, internal/hostaddr and internal/buildinfo
// are small and shared.
//
// internal/enrol is a gateway's side of its identity: key, enrolment, renewal, time. internal/machine checks a machine and makes it a
// gateway, for `frond join`; deploy/systemd has its unit.
//
// internal/faults breaks a devcluster by a seeded plan and judges what each node went through, from what internal/history
// wrote down; internal/crash kills a process between two steps, internal/powercut is a
// disk that loses what was not synced. internal/attacks tries what a stolen gateway may try.
package frond

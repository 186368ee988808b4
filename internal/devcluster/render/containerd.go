package render

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"text/template"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/toolchain"
)

// containerdConf holds the values of containerd's configuration. Root is persistent, Run holds sockets and mounts.
type containerdConf struct{ Root, Run, Shim, Runc, CNI, CNIConf, CNITemplate, Sandbox, Registries string }

// containerdText is the template of the configuration of containerd 2.4, which works beside other containerds on one machine, without
// AppArmor and without CAP_SYS_RESOURCE (restrict_oom_score_adj). Snapshotters and services that need what a gateway
// lacks are disabled; so is NRI, because its socket would be shared. Collecting stats every 10 s instead of 1 s costs a quarter.
const containerdText = `version = 4
root = {{q .Root}}
state = {{printf "%s/state" .Run | q}}
temp = ""
imports = []
disabled_plugins = ["io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.erofs", "io.containerd.differ.v1.erofs", "io.containerd.mount-handler.v1.erofs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing", "io.containerd.image-verifier.v1.bindir", "io.containerd.nri.v1.nri"]
[plugins."io.containerd.server.v1.grpc"]
  address = {{printf "%s/containerd.sock" .Run | q}}
[plugins."io.containerd.server.v1.ttrpc"]
  address = {{printf "%s/containerd.sock.ttrpc" .Run | q}}
[plugins."io.containerd.internal.v1.opt"]
  path = {{printf "%s/opt" .Root | q}}
[plugins."io.containerd.shim.v1.manager"]
  socket_dir = {{printf "%s/s" .Run | q}}
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = {{q .Sandbox}}
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = {{q .Registries}}
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = true
  netns_mounts_under_state_dir = true
  enable_criu = false
  stats_collect_period = "10s"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [{{q .CNI}}]
    conf_dir = {{q .CNIConf}}
    conf_template = {{q .CNITemplate}}
    max_conf_num = 1
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = {{q .Shim}}
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = {{q .Runc}}
        Root = {{printf "%s/runc" .Run | q}}
`

func quoteTOML(s string) string { return fmt.Sprintf("%q", s) }

// writeContainerd writes the configuration of a gateway's containerd and the template of its pod network.
func writeContainerd(e folder.Gateway, p toolchain.Paths) error {
	conf := containerdConf{
		Root: filepath.Join(e.Dir, "containerd", "root"), Run: e.Run,
		Shim: p.Shim, Runc: p.Runc, CNI: p.CNIDir, CNIConf: e.PodNetworkDir(), CNITemplate: e.PodNetworkTemplate(),
		Sandbox: toolchain.ImagePause, Registries: e.RegistryDir(),
	}
	t, err := template.New("config.toml").Funcs(template.FuncMap{"q": quoteTOML}).Parse(containerdText)
	if err != nil {
		return fmt.Errorf("parse template: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, conf); err != nil {
		return fmt.Errorf("render containerd's configuration: %w", err)
	}
	if err := folder.WriteFile(e.ContainerdConfig(), b.Bytes(), 0o644); err != nil {
		return err
	}
	return writePodNetworkTemplate(e)
}

func programInstalled(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/internal/install"
)

// cells is the number of accounts that nodes are spread over. With 4, some nodes share a cell and some do not.
const cells = 4

// installSettings returns the settings that an administrator would pass to frond init. A gateway that joins from this machine uses the
// hub's own listeners; the gateways of the cluster use other addresses, through the WAN.
func installSettings(s clusterState) install.Settings {
	hubs := numberedNames("hub", s.Spec.Hubs)
	chosen := install.Settings{Cells: cells, HubServers: len(hubs), HubHosts: append([]string{wan.Gateway}, hubs...)}
	for _, h := range hubs {
		chosen.HubURLs = append(chosen.HubURLs, "tls://"+loopbackAddress(s.Ports[h+"-leaf"]))
	}
	return chosen
}

// makeMaterial completes the files that frond init makes, because the hub starts before a Kubernetes exists to keep them. changed
// reports whether any file has changed.
func makeMaterial(l clusterLayout, s clusterState) (files install.Files, changed bool, err error) {
	have, err := readMaterial(l)
	if err != nil {
		return nil, false, err
	}
	files, changes, err := install.Fill(have, install.Spec{Servers: installSettings(s).Servers()}, time.Now())
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", l.materialDir(), err)
	}
	return files, len(changes) > 0, writeMaterial(l, files)
}

// applyInstall creates the objects of frond init in Kubernetes from the local files, then copies the present objects back. So the
// results of frond init and frond ca rotate reach the cluster, as a kubelet mounts Secrets into pods.
func (c *Cluster) applyInstall(ctx context.Context) error {
	l, s := c.layout, c.state
	have, err := readMaterial(l)
	if err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", l.kubeconfigFile())
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	cfg.QPS = -1
	report, err := install.Init(ctx, cfg, install.Options{Settings: installSettings(s), Files: have}, time.Now())
	if err != nil {
		return fmt.Errorf("frond init: %w", err)
	}
	files := report.Material
	maps.DeleteFunc(files, func(file string, _ []byte) bool { return isPodHubConfig(file) })
	if maps.EqualFunc(files, have, bytes.Equal) {
		return nil
	}
	before, err := hubCAHash(l)
	if err != nil {
		return err
	}
	if err := writeMaterial(l, files); err != nil {
		return err
	}
	if _, err := writeHub(l, s, files); err != nil {
		return err
	}
	if err := c.reloadHubs(numberedNames("hub", s.Spec.Hubs)); err != nil || before == report.CAHash {
		return err
	}
	ca, err := pki.NewAuthority(l.pkiDir(), "ca")
	if err != nil {
		return err
	}
	return writeGateways(l, s, ca) // the authority's hash is for gateways that join
}

// Sync copies the results of frond init and frond ca rotate since Up from Kubernetes to the hub's servers and the cloudcores. The
// cloudcores inform the gateways.
func (c *Cluster) Sync(ctx context.Context) error {
	return c.withLockedState(ctx, func() error { return c.applyInstall(ctx) })
}

// reloadHubs makes the running servers of the hub reload their files.
func (c *Cluster) reloadHubs(hubs []string) error {
	for _, h := range hubs {
		if err := c.state.Processes[h].Signal(syscall.SIGHUP); err != nil && !errors.Is(err, daemon.ErrGone) {
			return fmt.Errorf("reload %s: %w", h, err)
		}
	}
	return nil
}

// isPodHubConfig reports whether a file is the configuration of a hub server in a pod: the servers here have ports of their own.
func isPodHubConfig(file string) bool { return strings.HasSuffix(file, "/"+install.EntryConfig) }

// readMaterial reads all files. A missing file is read from the place where an earlier frond kept it.
func readMaterial(l clusterLayout) (install.Files, error) {
	files := install.Files{}
	found, err := filepath.Glob(filepath.Join(l.materialDir(), "*", "[^.]*"))
	if err != nil {
		return nil, fmt.Errorf("find keys: %w", err)
	}
	for _, path := range found {
		if err := readInto(files, filepath.Base(filepath.Dir(path))+"/"+filepath.Base(path), path); err != nil {
			return nil, err
		}
	}
	for file, name := range legacyFileNames() {
		if _, there := files[file]; there {
			continue
		}
		if err := readInto(files, file, l.path("nats", name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return files, nil
}

func readInto(files install.Files, file, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read key: %w", err)
	}
	files[file] = data
	return nil
}

// legacyFileNames maps files to their names in the folder nats of a cluster that an earlier frond has made. Joined gateways trust its
// authority, and before Up has run its credentials are the only ones for its hub.
func legacyFileNames() map[string]string {
	return map[string]string{
		install.FolderCA + "/" + install.EntryBundle:            "ca.crt",
		install.FolderCA + "/" + install.EntryAuthorityKey:      "ca.key",
		install.FolderCloudcore + "/" + install.EntryHubSeed:    "cloudcore.nk",
		install.FolderCloudcore + "/" + install.EntryAuthSeed:   "callout.nk",
		install.FolderCloudcore + "/" + install.EntrySysSeed:    "kicker.nk",
		install.FolderCloudcore + "/" + install.EntryIssuerSeed: "issuer.nk",
		install.FolderAdmin + "/" + install.EntryAdminSeed:      "admin.nk",
		install.FolderAdmin + "/" + install.EntrySysSeed:        "sys.nk",
		install.FolderAdmin + "/" + install.EntryBundle:         "ca.crt",
		install.FolderAdmin + "/" + install.EntryCert:           "admin.crt",
		install.FolderAdmin + "/" + install.EntryKey:            "admin.key",
	}
}

// writeMaterial makes the folder hold exactly these files. Unchanged files are not touched.
func writeMaterial(l clusterLayout, files install.Files) error {
	have, err := readMaterial(l)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(files))
	slices.SortStableFunc(names, func(a, b string) int { return writeOrder(a) - writeOrder(b) })
	for _, file := range names {
		path := filepath.Join(l.materialDir(), file)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, files[file]) {
			continue
		}
		if err := writeFile(path, files[file], 0o600); err != nil {
			return err
		}
	}
	for file := range have {
		if _, wanted := files[file]; wanted {
			continue
		}
		if err := os.Remove(filepath.Join(l.materialDir(), file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what counts no more: %w", err)
		}
	}
	return nil
}

// writeOrder sorts keys before certificates: after a crash in between, a key without a certificate gets one.
func writeOrder(file string) int {
	if strings.HasSuffix(file, ".crt") {
		return 1
	}
	return 0
}

// hubCAHash is the hash by which gateways verify the hub's CA.
func hubCAHash(l clusterLayout) (string, error) {
	ca, err := os.ReadFile(l.secretFile(install.FolderCA, install.EntryBundle))
	if err != nil {
		return "", fmt.Errorf("read the hub's CA: %w", err)
	}
	return install.CAHash(ca)
}

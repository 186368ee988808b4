package render

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/internal/install/pki"
)

// cells is the number of accounts that nodes are spread over. With 4, some nodes share a cell and some do not.
const cells = 4

// InstallSettings returns the settings that an administrator would pass to frond init. A gateway that joins from this machine uses the
// hub's own listeners; the gateways of the cluster use other addresses, through the WAN.
func InstallSettings(s folder.State) install.Settings {
	hubs := folder.Names("hub", s.Spec.Hubs)
	chosen := install.Settings{Cells: cells, Partitions: max(s.Spec.Partitions, 1), HubServers: len(hubs), HubHosts: append([]string{wan.Gateway}, hubs...)}
	for _, h := range hubs {
		chosen.HubURLs = append(chosen.HubURLs, "tls://"+folder.Loopback(s.Ports[h+"-leaf"]))
	}
	return chosen
}

// MakeMaterial completes the files that frond init makes, because the hub starts before a Kubernetes exists to keep them. changed
// reports whether any file has changed.
func MakeMaterial(l folder.Layout, s folder.State) (files install.Files, changed bool, err error) {
	have, err := ReadMaterial(l)
	if err != nil {
		return nil, false, err
	}
	files, changes, err := install.Fill(have, install.Spec{Servers: InstallSettings(s).Servers()}, time.Now())
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", l.MaterialDir(), err)
	}
	return files, len(changes) > 0, WriteMaterial(l, files)
}

// IsPodHubConfig reports whether a file is the configuration of a hub server in a pod: the servers here have ports of their own.
func IsPodHubConfig(file string) bool { return strings.HasSuffix(file, "/"+install.EntryConfig) }

// ReadMaterial reads all files. A missing file is read from the place where an earlier frond kept it.
func ReadMaterial(l folder.Layout) (install.Files, error) {
	files := install.Files{}
	found, err := filepath.Glob(filepath.Join(l.MaterialDir(), "*", "[^.]*"))
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
		if err := readInto(files, file, l.Path("nats", name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

// WriteMaterial makes the folder hold exactly these files. Unchanged files are not touched.
func WriteMaterial(l folder.Layout, files install.Files) error {
	have, err := ReadMaterial(l)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(files))
	slices.SortStableFunc(names, func(a, b string) int { return writeOrder(a) - writeOrder(b) })
	for _, file := range names {
		path := filepath.Join(l.MaterialDir(), file)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, files[file]) {
			continue
		}
		if err := folder.WriteFile(path, files[file], 0o600); err != nil {
			return err
		}
	}
	for file := range have {
		if _, wanted := files[file]; wanted {
			continue
		}
		if err := os.Remove(filepath.Join(l.MaterialDir(), file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

// HubCAHash is the hash by which gateways verify the hub's CA.
func HubCAHash(l folder.Layout) (string, error) {
	ca, err := os.ReadFile(l.SecretFile(install.FolderCA, install.EntryBundle))
	if err != nil {
		return "", fmt.Errorf("read the hub's CA: %w", err)
	}
	return pki.CAHash(ca)
}

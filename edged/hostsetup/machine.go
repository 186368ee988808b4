package hostsetup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"
	"time"

	"github.com/google/renameio/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/deploy/systemd"
)

// Hollow in place of a runtime's endpoint selects a gateway that runs no containers.
const Hollow = "hollow"

// Machine holds the paths of the gateway's files and its runtime.
type Machine struct {
	// Config is edgecore's configuration file, Dir its data folder, UnitDir systemd's folder of units.
	Config, Dir, UnitDir string
	// Runtime is the endpoint of the container runtime, unix:///path, or Hollow.
	Runtime string
	// NoStart leaves the start to the caller.
	NoStart bool
}

// IdentityDir is the folder of the gateway's identity.
func (m Machine) IdentityDir() string { return filepath.Join(m.Dir, "identity") }

func (m Machine) unitPath() string { return filepath.Join(m.UnitDir, systemd.Name) }

// HasSystemd reports whether systemd is the init system of this machine.
func HasSystemd() bool {
	_, err := os.Stat("/run/systemd/system") // sd_booted(3)
	return err == nil
}

// FindEdgecore finds the program: beside this one, or in the PATH.
func FindEdgecore() (string, error) {
	self, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), "edgecore")
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	return exec.LookPath("edgecore")
}

// Installed reads the existing configuration; it returns false when there is none.
func (m Machine) Installed() (config.EdgeCore, bool, error) {
	data, err := os.ReadFile(m.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return config.EdgeCore{}, false, nil
	}
	if err != nil {
		return config.EdgeCore{}, false, fmt.Errorf("read the configuration: %w", err)
	}
	c, err := config.ParseEdgeCore(data)
	if err != nil {
		return c, true, fmt.Errorf("configuration %s: %w", m.Config, err)
	}
	return c, true, nil
}

// Configure writes edgecore's configuration: the required values, and defaults for the rest. An existing file is kept, because an
// administrator may have edited it. The Node is registered with the taints.
func (m Machine) Configure(ctx context.Context, node string, hub config.EdgeHub, taints []corev1.Taint) error {
	if _, there, err := m.Installed(); there || err != nil {
		return err
	}
	runtime := map[string]any{"endpoint": m.Runtime}
	kubelet := map[string]any{}
	if m.Runtime == Hollow {
		runtime = map[string]any{"hollow": true}
	} else if driver := cgroupDriver(ctx, m.Runtime); driver != "" {
		kubelet["cgroupDriver"] = driver
	}
	if len(taints) > 0 {
		kubelet["registerWithTaints"] = taints
	}
	data, err := yaml.Marshal(map[string]any{"node": node, "dir": m.Dir, "hub": hub, "runtime": runtime, "kubelet": kubelet})
	if err != nil {
		return fmt.Errorf("encode the configuration: %w", err)
	}
	return writeFile(m.Config, append([]byte("# Written by frond join. docs/operations/configuration.md has all fields.\n"), data...), 0o600)
}

// writeFile replaces a file atomically.
func writeFile(path string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := renameio.WriteFile(path, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Install writes the systemd unit for a program.
func (m Machine) Install(edgecore string) error {
	unit, err := m.renderUnit(edgecore)
	if err != nil {
		return err
	}
	return writeFile(m.unitPath(), unit, 0o644)
}

func (m Machine) renderUnit(edgecore string) ([]byte, error) {
	t, err := template.New(systemd.Name).Parse(systemd.Unit)
	if err != nil {
		return nil, fmt.Errorf("unit: %w", err)
	}
	var unit bytes.Buffer
	if err := t.Execute(&unit, map[string]string{"Edgecore": edgecore, "Config": m.Config}); err != nil {
		return nil, fmt.Errorf("unit: %w", err)
	}
	return unit.Bytes(), nil
}

// Started reports whether Install and Start have nothing to do.
func (m Machine) Started(ctx context.Context, edgecore string) bool {
	want, err := m.renderUnit(edgecore)
	if err != nil {
		return false
	}
	have, err := os.ReadFile(m.unitPath())
	return err == nil && bytes.Equal(have, want) &&
		systemctl(ctx, "is-enabled", "--quiet", systemd.Name) == nil && systemctl(ctx, "is-active", "--quiet", systemd.Name) == nil
}

// Start makes systemd start edgecore, now and at each boot.
func (m Machine) Start(ctx context.Context) error {
	if err := systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	return systemctl(ctx, "enable", "--now", systemd.Name)
}

func systemctl(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %v: %w: %s", args, err, bytes.TrimSpace(out))
	}
	return nil
}

// Ready checks whether the gateway is ready; the error of edgecore says what is missing.
func Ready(ctx context.Context, listen string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listen+"/readyz?verbose", nil)
	if err != nil {
		return fmt.Errorf("ask edgecore: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("edgecore does not answer: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // read to its end or given up
	if response.StatusCode == http.StatusOK {
		return nil
	}
	const most = 4 << 10
	text := make([]byte, most)
	n, _ := response.Body.Read(text) // a partial text is printed as well
	return fmt.Errorf("edgecore is not ready:\n%s", bytes.TrimSpace(text[:n]))
}

// readyTimeout bounds one request, which edgecore answers from memory.
const readyTimeout = 5 * time.Second

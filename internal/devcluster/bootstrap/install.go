// Package bootstrap creates in a development cluster's Kubernetes what the cluster needs there: the objects of frond init, service accounts,
// join tokens and CoreDNS. It also copies the present keys of frond init to the hub and the gateways.
package bootstrap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/frond-edge/frond/api/kubeversion"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/deploy/rbac"
	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/internal/devcluster/render"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/internal/install/jointoken"
)

// Installer creates in Kubernetes what a cluster needs there, with kubectl and internal/install.
type Installer struct{ f *folder.Folder }

// NewInstaller returns an installer for a cluster.
func NewInstaller(f *folder.Folder) *Installer { return &Installer{f: f} }

// CreateAccounts creates the service accounts of the components outside Kubernetes, and fetches their tokens.
func (in *Installer) CreateAccounts(ctx context.Context) error {
	return errors.Join(in.Apply(ctx), in.allowImpersonation(ctx), in.installMetricsServer(ctx), in.installServices(ctx),
		in.writeAccountToken(ctx, "cloudcore", names.Namespace, render.CloudcoreToken(in.f.Layout)))
}

// allowImpersonation grants cloudcore the rights that it needs where constrained impersonation is missing.
func (in *Installer) allowImpersonation(ctx context.Context) error {
	if kubeversion.ImpersonationOf(in.f.State.Spec.Kubernetes) != kubeversion.Classic {
		return nil
	}
	if _, err := Kubectl(ctx, in.f.Layout, rbac.ClassicImpersonation(), "apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-"); err != nil {
		return fmt.Errorf("allow impersonation: %w", err)
	}
	return nil
}

// writeAccountToken fetches a token of a service account and writes it to a file.
func (in *Installer) writeAccountToken(ctx context.Context, account, namespace, tokenFile string) error {
	token, err := Kubectl(ctx, in.f.Layout, "", "create", "token", account, "--namespace="+namespace, "--duration=87600h") // ten years, as the certificates
	if err != nil {
		return fmt.Errorf("token of %s: %w", account, err)
	}
	return folder.WriteFile(filepath.Clean(tokenFile), []byte(strings.TrimSpace(token)), 0o600)
}

// installMetricsServer creates the objects of metrics-server and fetches its token.
func (in *Installer) installMetricsServer(ctx context.Context) error {
	if in.f.State.Spec.NoMetrics {
		return nil
	}
	manifest, err := os.ReadFile(in.f.Layout.Path(folder.MetricsServer + ".yaml"))
	if err != nil {
		return fmt.Errorf("install metrics-server: %w", err)
	}
	if _, err := Kubectl(ctx, in.f.Layout, string(manifest), "apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-"); err != nil {
		return fmt.Errorf("install metrics-server: %w", err)
	}
	return in.writeAccountToken(ctx, folder.MetricsServer, "kube-system", in.f.Layout.Path(folder.MetricsServer+".token"))
}

// Apply creates the objects of frond init in Kubernetes from the local files, then copies the present objects back. So the
// results of frond init and frond ca rotate reach the cluster, as a kubelet mounts Secrets into pods.
func (in *Installer) Apply(ctx context.Context) error {
	l, s := in.f.Layout, in.f.State
	have, err := render.ReadMaterial(l)
	if err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", l.KubeconfigFile())
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	cfg.QPS = -1
	report, err := install.Init(ctx, cfg, install.Options{Settings: render.InstallSettings(s), Files: have}, time.Now())
	if err != nil {
		return fmt.Errorf("frond init: %w", err)
	}
	files := report.Material
	maps.DeleteFunc(files, func(file string, _ []byte) bool { return render.IsPodHubConfig(file) })
	if maps.EqualFunc(files, have, bytes.Equal) {
		return nil
	}
	before, err := render.HubCAHash(l)
	if err != nil {
		return err
	}
	if err := render.WriteMaterial(l, files); err != nil {
		return err
	}
	if _, err := render.WriteHub(l, s, files); err != nil {
		return err
	}
	if err := in.ReloadHubs(folder.Names("hub", s.Spec.Hubs)); err != nil || before == report.CAHash {
		return err
	}
	ca, err := pki.NewAuthority(l.PKIDir(), "ca")
	if err != nil {
		return err
	}
	return render.WriteGateways(l, s, ca) // the authority's hash is for gateways that join
}

// ReloadHubs makes the running servers of the hub reload their files.
func (in *Installer) ReloadHubs(hubs []string) error {
	for _, h := range hubs {
		if err := in.f.State.Processes[h].Signal(syscall.SIGHUP); err != nil && !errors.Is(err, daemon.ErrGone) {
			return fmt.Errorf("reload %s: %w", h, err)
		}
	}
	return nil
}

// tokenLife is the lifetime of the certificates of Kubernetes here.
const tokenLife = 10 * 365 * 24 * time.Hour

// WriteTokens gives each gateway a join token, for its own name and reusable after each wipe of its disk.
func (in *Installer) WriteTokens(ctx context.Context) error {
	for _, edge := range folder.Names("edge", in.f.State.Spec.Edges) {
		file := in.f.Layout.Gateway(edge).TokenFile()
		if _, err := os.Stat(file); err == nil {
			continue
		}
		token, secret, err := jointoken.New(jointoken.Options{TTL: tokenLife, Node: edge, Description: "frond dev"}, time.Now())
		if err != nil {
			return err
		}
		manifest, err := json.Marshal(secret)
		if err != nil {
			return fmt.Errorf("token of %s: %w", edge, err)
		}
		if _, err := Kubectl(ctx, in.f.Layout, string(manifest), "create", "-f", "-"); err != nil {
			return fmt.Errorf("token of %s: %w", edge, err)
		}
		if err := folder.WriteFile(file, []byte(token), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Kubectl runs kubectl as the cluster's admin and returns its output.
func Kubectl(ctx context.Context, layout folder.Layout, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, layout.ProgramFile("kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+layout.KubeconfigFile())
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.Output()
	if err == nil {
		return string(out), nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(exit.Stderr)))
	}
	return "", fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
}

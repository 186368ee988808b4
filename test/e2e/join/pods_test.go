package join_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/test/kit"
)

const (
	namespace = "frond-system"
	// accountFolder has the service account's files in each pod: /run is also /var/run here.
	accountFolder = "/run/secrets/kubernetes.io/serviceaccount"
)

// pod is a pod of a StatefulSet or Deployment, run as a process.
type pod struct {
	*process
	name, address string
	spec          corev1.PodSpec
	netns         string
	program       string
	hosts         string   // further lines of /etc/hosts
	reach         []string // environment with the apiserver's address; nil before the first start
}

// startPods runs all pods of a template. The first one has the address 10.201.0.FROM.
func (c *bareCluster) startPods(t *testing.T, program, name string, from int, replicas int32, template corev1.PodTemplateSpec, hosts string) []*pod {
	t.Helper()
	var all []*pod
	for i := range int(replicas) {
		p := &pod{name: name + "-" + strconv.Itoa(i), address: fmt.Sprintf("10.201.0.%d", from+i), spec: template.Spec, program: program, hosts: hosts}
		part := "p" + strconv.Itoa(from+i)
		p.netns = c.namespaceName(part)
		c.addPodNamespace(part, p.address)
		c.startPod(t, p)
		all = append(all, p)
	}
	return all
}

// startPod runs the single container of a pod; the program corresponds to its image.
func (c *bareCluster) startPod(t *testing.T, p *pod) {
	t.Helper()
	dir := filepath.Join(c.dir, p.name)
	kit.Must(t, os.MkdirAll(dir, 0o755))
	hostsFile := filepath.Join(dir, "hosts")
	kit.Must(t, os.WriteFile(hostsFile, []byte("127.0.0.1 localhost\n"+p.hosts), 0o644))
	container, security := p.spec.Containers[0], p.spec.SecurityContext
	b := box{
		name: p.name, netns: p.netns, dir: dir, binds: map[string]string{"/etc/hosts": hostsFile, "/entrypoint": p.program},
		user: fmt.Sprintf("%d:%d", *security.RunAsUser, *security.RunAsGroup), readOnly: *container.SecurityContext.ReadOnlyRootFilesystem,
	}
	for _, mount := range container.VolumeMounts {
		b.binds[mount.MountPath] = c.volumeDir(t, p, mount.Name)
	}
	if account := p.spec.ServiceAccountName; account != "" {
		b.binds[accountFolder] = c.accountDir(t, p, account)
		if p.reach == nil {
			p.reach = c.relayToAPIServer(t, p.netns)
		}
		b.env = append(b.env, p.reach...)
	}
	var values []string // in pairs, for strings.NewReplacer
	for _, e := range container.Env {
		value := e.Value
		if e.ValueFrom != nil {
			if e.ValueFrom.FieldRef == nil || e.ValueFrom.FieldRef.FieldPath != "metadata.name" {
				t.Fatalf("the variable %s is from somewhere else than the pod's name", e.Name)
			}
			value = p.name
		}
		b.env = append(b.env, e.Name+"="+value)
		values = append(values, "$("+e.Name+")", value)
	}
	args := []string{"/entrypoint"}
	for _, arg := range container.Args {
		args = append(args, strings.NewReplacer(values...).Replace(arg))
	}
	p.process = b.startProcess(t, args...)
}

// volumeDir makes the folder of a volume, as a kubelet does: owned by root, readable by the group.
func (c *bareCluster) volumeDir(t *testing.T, p *pod, name string) string {
	t.Helper()
	dir := filepath.Join(c.dir, p.name, "volumes", name)
	kit.Must(t, os.MkdirAll(dir, 0o755))
	group := int(*p.spec.SecurityContext.FSGroup)
	for _, v := range p.spec.Volumes {
		if v.Name != name {
			continue
		}
		for file, data := range c.projectedFiles(t, v.Projected) {
			file = filepath.Join(dir, file)
			kit.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
			kit.Must(t, os.WriteFile(file, data, os.FileMode(*v.Projected.DefaultMode)))
			kit.Must(t, os.Chown(file, 0, group))
		}
		return dir
	}
	kit.Must(t, os.Chown(dir, 0, group)) // the volume of a claim
	kit.Must(t, os.Chmod(dir, 0o770|os.ModeSetgid))
	return dir
}

// projectedFiles returns the files of a projected volume.
func (c *bareCluster) projectedFiles(t *testing.T, v *corev1.ProjectedVolumeSource) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, source := range v.Sources {
		data, items := map[string][]byte{}, []corev1.KeyToPath(nil)
		switch {
		case source.Secret != nil:
			o, err := c.kube.CoreV1().Secrets(namespace).Get(t.Context(), source.Secret.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) && source.Secret.Optional != nil && *source.Secret.Optional {
				continue
			}
			kit.Must(t, err)
			data, items = o.Data, source.Secret.Items
		case source.ConfigMap != nil:
			o, err := c.kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), source.ConfigMap.Name, metav1.GetOptions{})
			kit.Must(t, err)
			for key, value := range o.Data {
				data[key] = []byte(value)
			}
			items = source.ConfigMap.Items
		default:
			t.Fatalf("a source that this test does not know: %v", source)
		}
		if len(items) == 0 {
			for key := range data {
				items = append(items, corev1.KeyToPath{Key: key, Path: key})
			}
		}
		for _, item := range items {
			if _, there := data[item.Key]; !there {
				t.Fatalf("there is no %s for %s: no kubelet would start this pod", item.Key, item.Path)
			}
			files[path.Clean(item.Path)] = data[item.Key]
		}
	}
	return files
}

// accountDir makes the folder with a token of a service account.
func (c *bareCluster) accountDir(t *testing.T, p *pod, account string) string {
	t.Helper()
	token, err := c.kube.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	kit.Must(t, err)
	dir := filepath.Join(c.dir, p.name, "account")
	kit.Must(t, os.MkdirAll(dir, 0o755))
	for file, data := range map[string][]byte{"token": []byte(token.Status.Token), "ca.crt": c.config.CAData, "namespace": []byte(namespace)} {
		kit.Must(t, os.WriteFile(filepath.Join(dir, file), data, 0o644))
	}
	return dir
}

// relayToAPIServer relays from a namespace to the apiserver, and returns the variables with its address.
func (c *bareCluster) relayToAPIServer(t *testing.T, netns string) []string {
	t.Helper()
	address := strings.TrimPrefix(c.config.Host, "https://")
	startRelay(t, netns, address, forwardTo("", address))
	host, port, err := net.SplitHostPort(address)
	kit.Must(t, err)
	return []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
}

// checkPodReady probes a pod as the kubelet of its node would.
func (c *bareCluster) checkPodReady(ctx context.Context, p *pod) error {
	if err := p.checkAlive(); err != nil {
		return kit.Permanent(fmt.Errorf("%s: %w", p.name, err))
	}
	container := p.spec.Containers[0]
	probe, port := container.ReadinessProbe.HTTPGet, 0
	for _, named := range container.Ports {
		if named.Name == probe.Port.StrVal {
			port = int(named.ContainerPort)
		}
	}
	bundle, err := c.kube.CoreV1().ConfigMaps(namespace).Get(ctx, "frond-hub-ca", metav1.GetOptions{})
	if err != nil {
		return err
	}
	roots := x509.NewCertPool() // a kubelet does not verify the certificate
	roots.AppendCertsFromPEM([]byte(bundle.Data["ca.crt"]))
	url := fmt.Sprintf("%s://%s:%d%s", strings.ToLower(string(probe.Scheme)), p.address, port, probe.Path)
	secure := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: p.name + ".frond-hub"}
	if err := c.expectOK(ctx, "cloud", url, secure); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// expectOK gets a URL from inside a part of the network, and returns an error if the status is not 200.
func (c *bareCluster) expectOK(ctx context.Context, part, url string, secure *tls.Config) error {
	_, err := c.fetchURL(ctx, part, url, secure)
	return err
}

// fetchURL is expectOK that also returns the answer.
func (c *bareCluster) fetchURL(ctx context.Context, part, url string, secure *tls.Config) (string, error) {
	transport := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: secure,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return wan.Dial(ctx, c.namespaceName(part), address)
		},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%d %s", response.StatusCode, body)
	}
	return string(body), err
}

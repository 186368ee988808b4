package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	"github.com/frond-edge/frond/api/identity"
)

func TestToken_CreateListDelete(t *testing.T) {
	i := newInstalledCluster(t)
	if code, _, errs := i.runCommand("token", "create", "--print-join-command"); code != 1 || !strings.Contains(errs, "run frond init") {
		t.Errorf("before the installation: code %d, %s", code, errs)
	}
	i.mustRun("init")
	if code, _, errs := i.runCommand("token", "create", "--print-join-command"); code != 1 || !strings.Contains(errs, "frond init --hub-url") {
		t.Errorf("without an address of the hub: code %d, %s", code, errs)
	}
	if out := i.mustRun("token", "list", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("a command that failed left a token: %s", out)
	}
	hash := parseReport(t, i.mustRun("init", "--hub-url", "tls://hub.example.com:7422", "-o", "json")).CAHash

	words := strings.Fields(i.mustRun("token", "create", "--print-join-command", "--node", "gw-17", "--description", "roof"))
	if len(words) != 9 || strings.Join(words[:3], " ") != "frond join hub.example.com:7422" || !bootstraputil.IsValidBootstrapToken(words[4]) ||
		strings.Join(words[5:], " ") != "--ca-hash "+hash+" --node-name gw-17" {
		t.Fatalf("join command %q", words)
	}
	id, private, _ := strings.Cut(words[4], ".")
	secret, err := i.client.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+id, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := identity.TokenOf(secret) // as cloudcore reads it
	if err != nil || token.Secret != private || token.Node != "gw-17" || token.Uses != 1 {
		t.Errorf("cloudcore reads %+v, %v", token, err)
	}
	if end := time.Until(token.Expires); end < 23*time.Hour || end > 24*time.Hour {
		t.Errorf("it ends in %s", end)
	}
	if _, may := secret.Data[bootstrapapi.BootstrapTokenUsageAuthentication]; may {
		t.Error("it opens the Kubernetes API, too")
	}
	identity.MarkUsed(secret, "gw-17", "UKEY")
	if _, err := i.client.CoreV1().Secrets("kube-system").Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	many := strings.TrimSpace(i.mustRun("token", "create", "--uses", "0", "--ttl", "1h"))
	for _, args := range [][]string{{"token", "list"}, {"token", "list", "-o", "json"}} {
		out := i.mustRun(args...)
		if strings.Contains(out, private) || strings.Contains(out, many) {
			t.Errorf("%v shows a secret:\n%s", args, out)
		}
		for _, want := range []string{id, "used up", "gw-17", "roof", many[:6], "valid"} {
			if !strings.Contains(out, want) {
				t.Errorf("%v lacks %q:\n%s", args, want, out)
			}
		}
	}
	if out := i.mustRun("token", "delete", many, id); !strings.Contains(out, id) || strings.Contains(out, many) {
		t.Errorf("delete prints %s", out)
	}
	_, err = i.client.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+id, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the token is there still: %v", err)
	}
}

func TestToken_JSONOutput(t *testing.T) {
	i := newInstalledCluster(t)
	var made struct {
		Token, JoinCommand, CAHash string
		Uses                       int
	}
	if err := json.Unmarshal([]byte(i.mustRun("token", "create", "-o", "json")), &made); err != nil {
		t.Fatal(err)
	}
	if !bootstraputil.IsValidBootstrapToken(made.Token) || made.JoinCommand != "" || made.Uses != 1 {
		t.Errorf("without an installation: %+v", made)
	}
	i.mustRun("init", "--hub-url", "tls://hub.example.com:7422")
	if err := json.Unmarshal([]byte(i.mustRun("token", "create", "-o", "json")), &made); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(made.JoinCommand, made.Token) || !strings.Contains(made.JoinCommand, made.CAHash) {
		t.Errorf("with one: %+v", made)
	}
}

func TestToken_ForeignTokensAreKept(t *testing.T) {
	i := newInstalledCluster(t)
	kubeadms := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef", Namespace: "kube-system"}, Type: bootstrapapi.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef", "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token"},
	}
	if _, err := i.client.CoreV1().Secrets("kube-system").Create(t.Context(), kubeadms, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if out := i.mustRun("token", "list", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("kubeadm's token is listed: %s", out)
	}
	for args, want := range map[string]string{
		"delete abcdef":         "kubeadm token delete",
		"delete zzzzzz":         "there is no token zzzzzz",
		"delete bootstrap":      "frond token list",
		"create --ttl 0":        "--ttl 0s",
		"create --uses -1":      "--uses -1",
		"create --node Gateway": `--node "Gateway"`,
	} {
		if code, out, errs := i.runCommand(append([]string{"token"}, strings.Fields(args)...)...); code != 1 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %s%s", args, code, out, errs)
		}
	}
}

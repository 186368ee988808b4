package syncstate

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/test/kit/clitest"
)

// startFakeAPI starts an API server with two Nodes, of which one has held deletions, and records patches.
func startFakeAPI(t *testing.T) (kubeconfig string, patched func() map[string]string) {
	t.Helper()
	hold, err := json.Marshal(wire.Hold{Token: "0123456789", Reason: wire.HoldMassDelete, Missing: 6, Pods: 8})
	if err != nil {
		t.Fatal(err)
	}
	node := func(name string, annotations map[string]string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	}
	nodes := []corev1.Node{node("held", map[string]string{names.AnnotationHeldDeletions: string(hold)}), node("free", nil)}
	patches := map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		reply := func(v any) {
			if err := json.NewEncoder(w).Encode(v); err != nil {
				t.Error(err)
			}
		}
		name := strings.TrimPrefix(r.URL.Path, "/api/v1/nodes")
		if name == "" {
			reply(corev1.NodeList{Items: nodes})
			return
		}
		for _, n := range nodes {
			if "/"+n.Name != name {
				continue
			}
			if r.Method == http.MethodPatch {
				var patch corev1.Node
				if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
					t.Error(err)
				}
				patches[n.Name] = patch.Annotations[names.AnnotationConfirmDeletions]
			}
			reply(n)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		reply(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"clusters":[{"name":"c","cluster":{"server":"` + server.URL + `"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, func() map[string]string { return patches }
}

func TestConfirm(t *testing.T) {
	held := map[string]string{"held": "0123456789"}
	for name, tt := range map[string]struct {
		args    []string
		out     string
		problem string
		patched map[string]string
	}{
		"one":             {args: []string{"held"}, out: "6 of 8", patched: held},
		"json":            {args: []string{"held", "-o", "json"}, out: `"token": "0123456789"`, patched: held},
		"all":             {args: []string{"--all-held"}, out: "held", patched: held},
		"nothing there":   {args: []string{"free"}, problem: "nothing is held back for free"},
		"one of two":      {args: []string{"held", "free"}, out: "6 of 8", problem: "nothing is held back for free", patched: held},
		"unknown":         {args: []string{"nobody"}, problem: "no node nobody"},
		"neither":         {problem: "name the gateways"},
		"both":            {args: []string{"held", "--all-held"}, problem: "name the gateways"},
		"strange output":  {args: []string{"held", "-o", "xml"}, problem: "choose json"},
		"no such cluster": {args: []string{"held", "--kubeconfig", "/none"}, problem: "find the cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig, patched := startFakeAPI(t)
			code, out, errs := clitest.Run(NewConfirm(), append([]string{"--kubeconfig", kubeconfig}, tt.args...)...)
			if (code == 0) != (tt.problem == "") || !strings.Contains(out, tt.out) || !strings.Contains(errs, tt.problem) {
				t.Errorf("code %d, stdout %q, stderr %q; want %q, %q", code, out, errs, tt.out, tt.problem)
			}
			if diff := cmp.Diff(tt.patched, patched()); diff != "" && len(tt.patched)+len(patched()) > 0 {
				t.Errorf("confirmed (-want +got):\n%s", diff)
			}
		})
	}
}

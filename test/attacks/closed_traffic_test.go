package attacks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// closedAddress is the endpoint of a Service in the victim's group, ownAddress that in the stolen gateway's.
const closedAddress, ownAddress = "203.0.113.77", "203.0.113.5"

// closedObjects are that Service, its slice and Endpoints, two groups, and a right for the stolen gateway's pod to read all endpoints.
const closedObjects = `
apiVersion: apps.kubeedge.io/v1alpha1
kind: NodeGroup
metadata: {name: closed-victim}
spec: {nodes: [%[1]s]}
---
apiVersion: apps.kubeedge.io/v1alpha1
kind: NodeGroup
metadata: {name: closed-stolen}
spec: {nodes: [%[2]s]}
---
apiVersion: v1
kind: Service
metadata: {name: closed, annotations: {apps.kubeedge.io/service-topology: range-nodegroup}}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: closed-1, labels: {kubernetes.io/service-name: closed}}
addressType: IPv4
endpoints:
- {addresses: [%[3]s], nodeName: %[1]s}
- {addresses: [%[4]s], nodeName: %[2]s}
---
apiVersion: v1
kind: Endpoints
metadata: {name: closed}
subsets:
- {addresses: [{ip: %[3]s, nodeName: %[1]s}, {ip: %[4]s, nodeName: %[2]s}], ports: [{port: 80}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: closed}
rules:
- {apiGroups: [""], resources: [endpoints], verbs: [get, list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: closed}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: closed}
subjects: [{kind: ServiceAccount, namespace: default, name: of-%[2]s}]
`

// TestClosedTraffic_StaysInGroup: the attacker has relabelled its Node into the victim's group, asks for all slices, and reads endpoints
// with the token of a pod that may read all of them: it gets no endpoint of the victim's group.
func TestClosedTraffic_StaysInGroup(t *testing.T) {
	manifest := fmt.Sprintf(closedObjects, victim, stolen, closedAddress, ownAddress)
	if _, err := shared.Kubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	relabel := func(ctx context.Context, group string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"apps.kubeedge.io/belonging-to":%s}}}`, group)
		_, err := kube.CoreV1().Nodes().Patch(ctx, stolen, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := relabel(ctx, "null"); err != nil {
			t.Error(err)
		}
		if _, err := shared.Kubectl(ctx, manifest, "delete", "--ignore-not-found", "-f", "-"); err != nil {
			t.Error(err)
		}
	})
	if err := relabel(t.Context(), `"closed-victim"`); err != nil { // as if it had found a way
		t.Fatal(err)
	}
	th.subscribe(th.inbox(), "")
	request := wire.ScopesRequest{Order: uint64(time.Now().UnixNano()), ServicesByNeed: true}
	for _, all := range wire.ServiceScopes() {
		request.Wants = append(request.Wants, wire.ScopeWant{Scope: all.Scope, Users: []string{"system:node:" + stolen}})
	}
	var scopes wire.ScopesReply
	if err := json.Unmarshal(th.callCloud(t, subject.VerbScopes, encodeJSON(t, request)), &scopes); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(connectAdmin(t))
	if err != nil {
		t.Fatal(err)
	}
	key := wire.Key{Group: discoveryv1.GroupName, Resource: "endpointslices", Namespace: "default", Name: "closed-1"}
	eventually(t, "the slice is sent, with the gateway's own endpoint", func(ctx context.Context) string {
		stream, err := js.Stream(ctx, subject.DesiredStream)
		if err != nil {
			return err.Error()
		}
		m, err := stream.GetLastMsgForSubject(ctx, subject.Of(subject.Desired, stolen, key))
		if err != nil {
			return err.Error()
		}
		if strings.Contains(string(m.Data), closedAddress) {
			t.Fatalf("it was sent %s", m.Data)
		}
		if !strings.Contains(string(m.Data), ownAddress) {
			return fmt.Sprintf("it was sent %s", m.Data)
		}
		return ""
	})
	token := podToken(t, stolen)
	for what, path := range map[string]string{
		"the slice": "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/closed-1", "all slices": "/apis/discovery.k8s.io/v1/endpointslices",
		"the Endpoints": "/api/v1/namespaces/default/endpoints/closed", "all Endpoints": "/api/v1/endpoints",
	} {
		eventually(t, what+" by the token of a pod", func(context.Context) string {
			reply := th.requestKube(t, wire.KubeRequest{Method: http.MethodGet, Path: path, Token: token})
			if strings.Contains(string(reply.Body), closedAddress) {
				t.Fatalf("%s: %s", what, reply.Body)
			}
			if reply.Code != http.StatusOK || !strings.Contains(string(reply.Body), ownAddress) {
				return fmt.Sprintf("%d %s %.300s", reply.Code, reply.Error, reply.Body)
			}
			return ""
		})
		watch := encodeJSON(t, wire.KubeRequest{Method: http.MethodGet, Path: path, Query: "resourceVersion=0", Token: token, Wait: 1000})
		if answer := th.callCloud(t, subject.VerbWatch, watch); strings.Contains(string(answer), closedAddress) {
			t.Errorf("the watch of %s told %.300s", what, answer)
		}
	}
	if reply := th.requestKube(t, wire.KubeRequest{Method: http.MethodGet, Path: "/apis/discovery.k8s.io/v1/endpointslices"}); reply.Code != http.StatusForbidden {
		t.Errorf("as the node: %d", reply.Code)
	}
}

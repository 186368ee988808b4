package attacks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

const (
	victimGroup = "of-the-victim"
	siteLabel   = "attacks.example/site"
)

// createVictimGroup creates a NodeGroup that selects the victim by a label, and waits until the victim is in it.
func createVictimGroup(t *testing.T) {
	t.Helper()
	group := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q},"spec":{"matchLabels":{%q:"victim"},"topologyEnabled":true}}`,
		apps.GroupVersion(), apps.NodeGroupKind, victimGroup, siteLabel)
	groups := kube.CoreV1().RESTClient().Post().AbsPath("/apis", apps.Group, apps.Version, apps.NodeGroupsResource)
	if err := groups.SetHeader("Content-Type", "application/json").Body([]byte(group)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	setLabel := func(ctx context.Context, node, label, value string) {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, label, value)
		if _, err := kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
	setLabel(t.Context(), victim, siteLabel, `"victim"`)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		setLabel(ctx, victim, siteLabel, "null")
		setLabel(ctx, stolen, corev1.LabelInstanceTypeStable, "null")
		remove := kube.CoreV1().RESTClient().Delete().AbsPath("/apis", apps.Group, apps.Version, apps.NodeGroupsResource, victimGroup)
		if err := remove.Do(ctx).Error(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the victim is in its group", func(ctx context.Context) string {
		return groupLabels(ctx, victim, map[string]string{siteLabel: "victim", names.LabelNodeGroup: victimGroup, corev1.LabelTopologyZone: victimGroup})
	})
}

// groupLabels returns what differs between the labels of a Node that groups are about, and those that it should have.
func groupLabels(ctx context.Context, name string, want map[string]string) string {
	node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	has := map[string]string{}
	for _, key := range []string{siteLabel, names.LabelNodeGroup, corev1.LabelTopologyZone} {
		if value, ok := node.Labels[key]; ok {
			has[key] = value
		}
	}
	if !maps.Equal(has, want) {
		return fmt.Sprintf("node %s has %v, want %v", name, has, want)
	}
	return ""
}

// TestGroup_RelabelledGatewayGainsNothing gives the stolen gateway's own Node the labels of the victim's group, in a report and in every kind
// of request: none of them comes into the Node, and the group has no other member.
func TestGroup_RelabelledGatewayGainsNothing(t *testing.T) {
	createVictimGroup(t)
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	th.subscribe(th.inbox(), "")
	own, err := kube.CoreV1().Nodes().Get(t.Context(), stolen, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	own.ManagedFields = nil
	const fleet = "thiefs-machine"
	maps.Copy(own.Labels, map[string]string{
		siteLabel: "victim", names.LabelNodeGroup: victimGroup, corev1.LabelTopologyZone: victimGroup, corev1.LabelInstanceTypeStable: fleet,
	})
	forged, err := json.Marshal(own)
	if err != nil {
		t.Fatal(err)
	}
	labels, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": own.Labels}})
	if err != nil {
		t.Fatal(err)
	}
	const merge, strategic, plain = "application/merge-patch+json", "application/strategic-merge-patch+json", "application/json"
	checkUnharmed(t, func() {
		for name, r := range map[string]wire.KubeRequest{
			"a patch":                      {Method: http.MethodPatch, Path: ownNodePath, ContentType: merge, Body: labels},
			"a patch of the status":        {Method: http.MethodPatch, Path: ownNodePath + "/status", ContentType: merge, Body: labels},
			"a strategic one":              {Method: http.MethodPatch, Path: ownNodePath + "/status", ContentType: strategic, Body: labels},
			"applied by the server":        {Method: http.MethodPatch, Path: ownNodePath + "/status", Query: "fieldManager=thief&force=true", ContentType: "application/apply-patch+yaml", Body: forged},
			"an update":                    {Method: http.MethodPut, Path: ownNodePath, ContentType: plain, Body: forged},
			"an update of the status":      {Method: http.MethodPut, Path: ownNodePath + "/status", ContentType: plain, Body: forged},
			"a registration once more":     {Method: http.MethodPost, Path: "/api/v1/nodes", ContentType: plain, Body: forged},
			"a status with a slash behind": {Method: http.MethodPatch, Path: ownNodePath + "/status/", ContentType: merge, Body: labels},
			"the group itself":             {Method: http.MethodPatch, Path: "/apis/" + apps.Group + "/" + apps.Version + "/" + apps.NodeGroupsResource + "/" + victimGroup, ContentType: merge, Body: []byte(`{"spec":{"nodes":["` + stolen + `"]}}`)},
		} {
			if r := th.requestKube(t, r); r.Code/100 == 2 {
				t.Errorf("%s: %d %.300s", name, r.Code, r.Body)
			}
		}
		th.publish(subject.Of(subject.Report, stolen, wire.Key{Resource: "nodes", Name: stolen}), th.inbox(), forged,
			"Frond-Version: 1", "Frond-Op: apply", "Frond-UID: "+string(own.UID), "Frond-Store: thief", "Frond-Order: 1",
			"Frond-Time: "+time.Now().UTC().Format(time.RFC3339Nano))
		if said := th.flush(t.Context()); said != "" {
			t.Fatal(said)
		}
		eventually(t, "the report is applied, with a label that is the kubelet's own", func(ctx context.Context) string {
			node, err := kube.CoreV1().Nodes().Get(ctx, stolen, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if value := node.Labels[corev1.LabelInstanceTypeStable]; value != fleet {
				return fmt.Sprintf("the instance type is %q", value)
			}
			return ""
		})
	})
	if wrong := groupLabels(t.Context(), stolen, map[string]string{}); wrong != "" {
		t.Error(wrong)
	}
	group := &apps.NodeGroup{}
	data, err := kube.CoreV1().RESTClient().Get().AbsPath("/apis", apps.Group, apps.Version, apps.NodeGroupsResource, victimGroup).Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, group); err != nil {
		t.Fatal(err)
	}
	if s := group.Status.NodeStatuses; len(s) != 1 || s[0].NodeName != victim || group.Status.Members != 1 {
		t.Errorf("the group has %+v", group.Status)
	}
}

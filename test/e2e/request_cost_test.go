package e2e_test

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/kubernetes"
)

// countRequests counts the apiserver's requests, by verb, of the resources that pick selects.
func countRequests(t *testing.T, kube kubernetes.Interface, pick func(verb, resource string) bool) float64 {
	t.Helper()
	raw, err := kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, m := range families["apiserver_request_total"].GetMetric() {
		if pick(labelValue(m, "verb"), labelValue(m, "resource")) {
			sum += m.GetCounter().GetValue()
		}
	}
	return sum
}

func labelValue(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// periodicResources are resources that components write periodically, or to authorize requests, independent of deliveries.
var periodicResources = []string{
	"leases", "nodes", "events", "endpoints", "endpointslices", "certificatesigningrequests", "serviceaccounts", "tokenreviews",
	"subjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectreviews",
}

// TestDelivery_CostsNoAPIRequests counts requests at the apiserver: 200 delivered updates are 200 patches by the user and
// no further request of ConfigMaps, and no other write except periodic ones (leases, node statuses, tokens).
func TestDelivery_CostsNoAPIRequests(t *testing.T) {
	applyManifest(t, manyConfigMaps("cost", "edge-1", 1))
	awaitRunning(t, "app=cost", 1)
	awaitValue(t, "cost-0", "0", "edge-1")
	kube := sharedKube
	maps := func(verb, resource string) bool { return resource == "configmaps" && verb != "WATCH" }
	writes := func(verb, resource string) bool {
		return !slices.Contains(periodicResources, resource) && (verb == "POST" || verb == "PUT" || verb == "PATCH" || verb == "DELETE")
	}
	const updates = 200
	var faults []string
	for range 3 { // an unrelated request may happen once, not each time
		mapsBefore, writesBefore := countRequests(t, kube, maps), countRequests(t, kube, writes)
		for i := range updates {
			if err := setConfigMap(t.Context(), kube, "cost-0", strconv.Itoa(i+1)); err != nil {
				t.Fatal(err)
			}
		}
		awaitValue(t, "cost-0", strconv.Itoa(updates), "edge-1")
		ofMaps, ofAll := countRequests(t, kube, maps)-mapsBefore, countRequests(t, kube, writes)-writesBefore
		if ofMaps == updates && ofAll == updates {
			return
		}
		faults = append(faults, fmt.Sprintf("%v requests of ConfigMaps and %v writes in all for %d updates", ofMaps, ofAll, updates))
		if err := setConfigMap(t.Context(), kube, "cost-0", "0"); err != nil {
			t.Fatal(err)
		}
	}
	t.Error(faults)
}

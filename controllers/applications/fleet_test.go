package applications_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/controllers/applications"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var (
	fleetGroups       = flag.Int("fleet.groups", 200, "groups of BenchmarkFleet")
	fleetApplications = flag.Int("fleet.applications", 100, "applications of BenchmarkFleet")
)

// calls counts the requests of the controllers since a time, by verb and resource; "dry run" and "watch" apart.
func (e *env) calls(since time.Time) map[string]int {
	e.Helper()
	counts := map[string]int{}
	for _, a := range shared.Cluster(e).Audit(e, since, func(a kubetest.AuditEntry) bool {
		return strings.Contains(a.UserAgent, "frond-applications-test") && strings.Contains(a.URI, e.namespace)
	}) {
		path, query, _ := strings.Cut(a.URI, "?")
		_, resource, _ := strings.Cut(path, e.namespace+"/")
		resource, name, _ := strings.Cut(resource, "/")
		verb := a.Verb
		switch {
		case strings.Contains(query, "dryRun"):
			verb = "dry run"
		case strings.HasSuffix(name, "/status"):
			verb += " status"
		}
		counts[verb+" "+resource]++
	}
	return counts
}

func printed(calls map[string]int) string {
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(calls)) {
		texts = append(texts, fmt.Sprintf("%s %d", key, calls[key]))
	}
	return strings.Join(texts, ", ")
}

// TestController_CallsForTwentyGroups bounds what an application costs the apiserver: one write for each object, none while nothing changes.
func TestController_CallsForTwentyGroups(t *testing.T) {
	e := newEnv(t)
	var groups []string
	want := map[string]string{}
	for i := range 20 {
		groups = append(groups, fmt.Sprintf("g%02d", i))
		want[groups[i]] = "web:1"
	}
	stop := e.start(newOwnership(e.namespace, true))
	began := time.Now()
	e.put("shop", nil, manifests("1"), groups...)
	e.awaitImages(want)
	e.awaitCondition("shop", applications.ConditionApplied, metav1.ConditionTrue, "")
	made := e.calls(began)
	t.Logf("made: %s", printed(made))
	if made["patch deployments"] != 20 || made["patch services"] != 1 || made["patch configmaps"] != 1 || made["dry run deployments"] > 0 {
		t.Errorf("20 Deployments, a Service and a ConfigMap took %s", printed(made))
	}

	began = time.Now()
	for _, g := range groups {
		want[g] = "web:2"
	}
	e.put("shop", nil, append([]string{strings.ReplaceAll(webManifest, "VERSION", "2")}, manifests("1")[1:]...), groups...)
	e.awaitImages(want)
	e.awaitCondition("shop", applications.ConditionApplied, metav1.ConditionTrue, "")
	changed := e.calls(began)
	t.Logf("changed image: %s", printed(changed))
	if changed["patch deployments"] != 20 || changed["patch services"]+changed["patch configmaps"] > 0 {
		t.Errorf("another image took %s", printed(changed))
	}

	// A replica that starts reads what exists, and writes nothing.
	stop()
	began = time.Now()
	e.startOwner()
	e.put("marker", nil, nil)
	e.awaitCondition("marker", applications.ConditionApplied, metav1.ConditionTrue, "")
	kit.Succeeds(t, changeTimeout, func() error {
		if calls := e.calls(began); calls["dry run deployments"] < 20 {
			return fmt.Errorf("not looked at all objects yet: %s", printed(calls))
		}
		return nil
	})
	restarted := e.calls(began)
	t.Logf("restarted: %s", printed(restarted))
	for _, verb := range []string{"patch deployments", "patch services", "patch configmaps", "delete deployments"} {
		if restarted[verb] > 0 {
			t.Errorf("a restart wrote: %s", printed(restarted))
		}
	}
}

// BenchmarkFleet makes applications for groups, changes one image of each, and prints times and calls. Sizes: -fleet.groups, -fleet.applications.
func BenchmarkFleet(b *testing.B) {
	if b.N > 1 {
		b.Skip("runs once: -benchtime 1x")
	}
	e := newEnv(b)
	e.startOwner()
	var groups []string
	for i := range *fleetGroups {
		groups = append(groups, fmt.Sprintf("g%03d", i))
		e.createGroup(groups[i], nil, nil)
	}
	total := *fleetGroups * *fleetApplications
	for _, version := range []string{"1", "2"} {
		began := time.Now()
		for i := range *fleetApplications {
			name := fmt.Sprintf("app-%03d", i)
			manifest := strings.NewReplacer(`"name":"web"},"spec":{"replicas"`, `"name":"`+name+`"},"spec":{"replicas"`, "VERSION", version).Replace(webManifest)
			e.put(name, nil, []string{manifest}, groups...)
		}
		kit.Succeeds(b, 30*time.Minute, func() error {
			n := 0
			err := e.eachDeployment(func(d *appsv1.Deployment) {
				if d.Spec.Template.Spec.Containers[0].Image == "web:"+version {
					n++
				}
			})
			if err == nil && n != total {
				err = fmt.Errorf("%d of %d Deployments", n, total)
			}
			return err
		})
		b.ReportMetric(time.Since(began).Seconds(), "s/version"+version)
		b.Logf("version %s of %d applications for %d groups: %s; %s", version, *fleetApplications, *fleetGroups, time.Since(began).Round(100*time.Millisecond), printed(e.calls(began)))
	}
	idle := time.Now()
	kit.Succeeds(b, 5*time.Minute, func() error { // status writes end
		if n := len(e.writes(idle)); n > 0 {
			idle = time.Now()
			return fmt.Errorf("%d writes", n)
		}
		if time.Since(idle) < 30*time.Second {
			return errors.New("quiet, but not for long")
		}
		return nil
	})
}

// eachDeployment reads the Deployments in pages.
func (e *env) eachDeployment(f func(*appsv1.Deployment)) error {
	options := metav1.ListOptions{Limit: 500}
	for {
		list, err := e.client.AppsV1().Deployments(e.namespace).List(e.Context(), options)
		if err != nil {
			return err
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}

package attacks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/streams/subject"
)

const (
	// floodTime is how long each flood lasts.
	floodTime = 2 * time.Second
	// memoryBudget bounds a cloudcore's memory, whatever a gateway sends; the tests showed some 100 MB.
	memoryBudget = 512 << 20
)

// floodMessages are permitted messages that the attacker sends as fast as its link allows.
func floodMessages(t *testing.T) map[string]func(th *attacker, i int) {
	t.Helper()
	report := func(i int) string { return fmt.Sprintf("report.%s.core.pods.default.flood-%d", stolen, i) }
	headers := func(i int, more ...string) []string {
		return append([]string{
			"Frond-Version: 1", "Frond-Op: apply", fmt.Sprintf("Frond-UID: %d", i), "Frond-Store: thief", fmt.Sprintf("Frond-Order: %d", i),
			"Frond-Time: " + time.Now().UTC().Format(time.RFC3339Nano),
		}, more...)
	}
	large := []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"x":"` + strings.Repeat("x", 900<<10) + `"}`)
	deep, packed := []byte(nestedJSON(10_000)), zstdBomb(t)
	many := make([]string, 2000)
	for i := range many {
		many[i] = fmt.Sprintf("X-%d: %s", i, strings.Repeat("y", 500))
	}
	return map[string]func(th *attacker, i int){
		"tiny reports":       func(th *attacker, i int) { th.publish(report(i), "", []byte("{}"), headers(i)...) },
		"large reports":      func(th *attacker, i int) { th.publish(report(i%100), "", large, headers(i)...) },
		"deep reports":       func(th *attacker, i int) { th.publish(report(i), "", deep, headers(i)...) },
		"null reports":       func(th *attacker, i int) { th.publish(report(i), "", []byte("null"), headers(i)...) },
		"reports of headers": func(th *attacker, i int) { th.publish(report(i%100), "", []byte("{}"), headers(i, many...)...) },
		"bombs": func(th *attacker, i int) {
			th.publish(report(i%100), "", packed, headers(i, "Content-Encoding: zstd")...)
		},
		"beats that are none": func(th *attacker, _ int) { th.publish(subject.HeartbeatSubject(stolen), "", []byte("null")) },
		"calls that are none": func(th *attacker, _ int) { th.publish(subject.CallSubject(stolen, "x"), th.inbox(), deep) },
		"questions to the API": func(th *attacker, _ int) {
			th.publish(subject.CallSubject(stolen, subject.VerbKube), th.inbox(), []byte(`{"method":"GET","path":"/api/v1/secrets"}`))
		},
	}
}

// TestFlood_OtherGatewaysAreServed sends as fast as possible, and meanwhile checks the other gateways and cloudcore's memory.
func TestFlood_OtherGatewaysAreServed(t *testing.T) {
	l := stealCredentials(t, stolen)
	flooded := counterDelta(t, "frond_reports_total", "result=flooded")
	for name, send := range floodMessages(t) {
		t.Run(name, func(t *testing.T) {
			th := l.mustOpenLink(t, nil)
			ctx, cancel := context.WithTimeout(t.Context(), floodTime)
			defer cancel()
			sent := make(chan int, 1)
			go func() {
				n := 0
				for ; ctx.Err() == nil && !isClosed(th); n++ {
					send(th, n)
				}
				sent <- n
			}()
			began := time.Now()
			changeVictim(t)
			down := time.Since(began)
			checkReportArrives(t)
			up := time.Since(began) - down
			<-ctx.Done()
			most := 0.0
			for _, part := range []string{"cloudcore-1", "cloudcore-2"} {
				rss, err := shared.Metric(t.Context(), part, "process_resident_memory_bytes")
				if err != nil {
					t.Errorf("%s does not answer: %v", part, err)
				}
				most = max(most, rss)
			}
			if most > memoryBudget {
				t.Errorf("a cloudcore takes %.0f MB", most/1e6)
			}
			_ = th.conn.Close()
			<-th.closed
			t.Logf("%d messages, the victim had its change after %s and the cloud the victim's after %s, cloudcore has %.0f MB",
				<-sent, down.Round(time.Millisecond), up.Round(time.Millisecond), most/1e6)
		})
	}
	awaitCounter(t, "what was dropped", flooded, 1)
	awaitLogged(t, "a node floods the stream", stolen)
	checkVictimServed(t)
	t.Logf("afterwards: %v", streamSizes(t))
}

// checkReportArrives starts a pod on the victim, and waits until Kubernetes has the report that it runs.
func checkReportArrives(t *testing.T) {
	t.Helper()
	name := newName()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: victim, TerminationGracePeriodSeconds: new(int64), Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{Name: "c", Image: "localhost/frond/tools:dev", ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "36000"}}},
	}}
	pods := kube.CoreV1().Pods("default")
	if _, err := pods.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pods.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}) }() // the cluster ends with the tests
	eventually(t, "Kubernetes hears of the victim's pod", func(ctx context.Context) string {
		now, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil || now.Status.Phase != corev1.PodRunning {
			return fmt.Sprint("it is ", now.Status.Phase, err)
		}
		return ""
	})
}

// streamSizes lists the sizes of the hub's streams.
func streamSizes(t *testing.T) (list []string) {
	t.Helper()
	js, err := jetstream.New(connectAdmin(t))
	if err != nil {
		t.Fatal(err)
	}
	for s := range js.ListStreams(t.Context()).Info() {
		list = append(list, fmt.Sprintf("%s %d messages %d MB", s.Config.Name, s.State.Msgs, s.State.Bytes>>20))
	}
	return list
}

package attacks_test

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/podstatus"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// TestSameCall_TellsNothingOfOtherNodes guesses the victim's pod and its status exactly right: the answer is that of a wrong guess.
func TestSameCall_TellsNothingOfOtherNodes(t *testing.T) {
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	digest := func(name string) wire.PodDigest {
		pod, err := kube.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		d, err := podstatus.Digest(pod.Status)
		if err != nil {
			t.Fatal(err)
		}
		return wire.PodDigest{Namespace: "default", Name: name, UID: string(pod.UID), Digest: d}
	}
	ask := func(pods ...wire.PodDigest) (reply wire.SameReply) {
		t.Helper()
		if err := json.Unmarshal(th.callCloud(t, subject.VerbSame, encodeJSON(t, wire.SameRequest{Pods: pods})), &reply); err != nil {
			t.Fatal(err)
		}
		return reply
	}
	if reply := ask(digest("on-" + stolen)); len(reply.Same) != 1 {
		t.Fatalf("the stolen node's own pod: %+v", reply) // the control: otherwise the rest proves nothing
	}
	if reply := ask(digest("on-" + victim)); len(reply.Same) != 0 || reply.Error != "" {
		t.Errorf("the victim's pod: %+v", reply)
	}
	many := make([]wire.PodDigest, wire.MaxPodDigests+1)
	if reply := ask(many...); len(reply.Same) != 0 || reply.Error == "" {
		t.Errorf("too many pods: %+v", reply)
	}
	if reply := ask(wire.PodDigest{}); reply.Error == "" {
		t.Errorf("a pod without a name: %+v", reply)
	}
}

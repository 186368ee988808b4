package attacks_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/devicecall"
	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/certs"
)

// callerLabel is the user that may call, as the streams of its calls name it.
const callerLabel = "system:serviceaccount:default:device-caller"

// callers are two accounts: one that may call methods of devices, and one that may do all else with devices and gateways.
const callers = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: device-caller, namespace: default}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: device-owner, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: device-caller}
rules:
- {apiGroups: [devices.kubeedge.io], resources: [devices/call], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: device-owner}
rules:
- {apiGroups: [devices.kubeedge.io], resources: [devices, devices/status, devicemodels, devicestatuses], verbs: ["*"]}
- {apiGroups: [devices.kubeedge.io], resources: [devices/call], verbs: [get, list, watch, update, patch, delete]}
- {apiGroups: [""], resources: [nodes/proxy, pods/exec, pods/proxy], verbs: [get, create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: device-caller}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: device-caller}
subjects: [{kind: ServiceAccount, name: device-caller, namespace: default}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: device-owner}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: device-owner}
subjects: [{kind: ServiceAccount, name: device-owner, namespace: default}]
`

// createCallers creates the accounts, and returns a token of each.
func createCallers(t *testing.T) (caller, owner string) {
	t.Helper()
	if _, err := shared.Kubectl(t.Context(), callers, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := shared.Kubectl(context.WithoutCancel(t.Context()), callers, "delete", "--ignore-not-found", "-f", "-"); err != nil {
			t.Log(err) // the cluster ends with the tests
		}
	})
	tokenOf := func(account string) string {
		made, err := kube.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made.Status.Token
	}
	return tokenOf("device-caller"), tokenOf("device-owner")
}

// callDevice asks a cloudcore to call a method of a device with a value, as frond device call does. The answer is empty unless code is 200.
func callDevice(ctx context.Context, server, token, device, value string) (code int, answer devicecall.Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	body, err := json.Marshal(devicecall.Request{Method: "move", Value: value, Milliseconds: 5000})
	if err != nil {
		return 0, answer, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server+devicecall.Path+"/default/"+device, bytes.NewReader(body))
	if err != nil {
		return 0, answer, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	roots, err := certs.LoadPool(shared.HubCA())
	if err != nil {
		return 0, answer, err
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: inspect.ServerName}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, answer, err
	}
	defer func() { _ = response.Body.Close() }() // it is read
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err == nil && response.StatusCode == http.StatusOK {
		err = json.Unmarshal(text, &answer)
	}
	return response.StatusCode, answer, err
}

// createCallableDevices gives the devices of the two gateways a method.
func createCallableDevices(t *testing.T) {
	t.Helper()
	createKubeEdgeDevices(t)
	for _, node := range []string{victim, stolen} {
		if _, err := shared.Kubectl(t.Context(), "", "patch", "device", "of-"+node, "--type=merge", "-p",
			`{"spec":{"protocol":{"protocolName":"modbus"},"methods":[{"name":"move","propertyNames":["valve"]}]}}`); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitCall waits until a call with the right reaches the victim's gateway, which has no part for devices and says so, and returns the cloudcores'
// addresses.
func awaitCall(t *testing.T, token string) (servers []string) {
	t.Helper()
	servers = strings.Split(shared.Cloudcores(), ",")
	eventually(t, "a call with the right reaches the victim's gateway", func(ctx context.Context) string {
		code, answer, err := callDevice(ctx, servers[0], token, "of-"+victim, "open")
		if err != nil || code != http.StatusOK || answer.Node != victim || answer.Outcome != devicecall.NotSent || !strings.Contains(answer.Reason, "node "+victim+" refused port") {
			return fmt.Sprintf("%d %+v %v", code, answer, err)
		}
		return ""
	})
	return servers
}

// TestDeviceCall_NeedsTheRight: who may do all else with devices and gateways calls no method, neither at cloudcore nor past it.
func TestDeviceCall_NeedsTheRight(t *testing.T) {
	createCallableDevices(t)
	caller, owner := createCallers(t)
	for _, server := range awaitCall(t, caller) {
		for name, tt := range map[string]struct {
			token string
			code  int
		}{"without a token": {"", http.StatusUnauthorized}, "with garbage": {"thief", http.StatusUnauthorized}, "without the right": {owner, http.StatusForbidden}} {
			for _, device := range []string{"of-" + victim, "of-nobody"} { // what exists is not told either
				if code, answer, err := callDevice(t.Context(), server, tt.token, device, "open"); err != nil || code != tt.code {
					t.Errorf("%s, %s: %d %+v %v", name, device, code, answer, err)
				}
			}
		}
	}
	if greeting, refused, err := dialThroughEgress(t.Context(), fmt.Sprintf("%s:%d", victim, config.EdgeDevicePort)); err != nil || refused == "" {
		t.Errorf("past cloudcore, as one that may use nodes/proxy: %q %v", greeting, err)
	}
}

// TestDeviceCall_OfAnotherNode: as the stolen node, an attacker calls no method of another node's device, hears no call, and answers none.
func TestDeviceCall_OfAnotherNode(t *testing.T) {
	createCallableDevices(t)
	caller, _ := createCallers(t)
	server := awaitCall(t, caller)[0]
	l := stealCredentials(t, stolen)
	ears := map[string]*attacker{}
	for _, name := range []string{">", "tunnel.>", "tunnel." + victim + ".>", "tunnelup.>", "tunnelup." + victim + ".>", "call.node.>", "call.node." + victim + ".>", "call.node." + victim + ".device"} {
		ears[name] = l.mustOpenLink(t, nil)
		ears[name].subscribe(name, "")
		ears[name].flush(t.Context()) // the hub may close the link
	}
	checkUnharmed(t, func() {
		answered, replica := answerForVictim(t, l, func(ctx context.Context) string {
			code, answer, err := callDevice(ctx, server, caller, "of-"+victim, "open")
			if answer.Outcome == devicecall.Answered || bytes.Contains(answer.Body, []byte("thief")) {
				t.Errorf("the attacker's answer is taken: %+v", answer)
			}
			if err != nil || code != http.StatusOK || answer.Node != victim {
				return fmt.Sprintf("%d %+v %v", code, answer, err)
			}
			return ""
		})
		t.Logf("%d frames of the victim's calls were answered for it", answered)
		openStreamToVictim(t, l, replica)
	})
	for name, th := range ears {
		th.flush(t.Context())
		th.mu.Lock()
		if bytes.Contains(th.rawInput.Bytes(), []byte(callerLabel)) {
			t.Errorf("on %s the call was heard", name)
		}
		th.mu.Unlock()
	}
	th := l.mustOpenLink(t, nil)
	th.subscribe(th.inbox(), "")
	for _, device := range []string{"of-" + victim, "of-" + stolen} {
		r := wire.KubeRequest{Method: http.MethodPost, Path: devicesPath + "/" + device + "/call", ContentType: "application/json", Body: []byte(`{"method":"move","value":"open"}`)}
		if reply := th.requestKube(t, r); reply.Code != http.StatusForbidden {
			t.Errorf("a call of %s by a Kubernetes request: %d %s", device, reply.Code, reply.Error)
		}
	}
}

// answerForVictim answers all streams that the cloud opens to the victim, whose ids are secret, in the victim's place, while call calls. It returns how many
// frames it has answered, and the name of a cloudcore in the subjects.
func answerForVictim(t *testing.T, l loot, call func(ctx context.Context) string) (answered int, replica string) {
	t.Helper()
	const body = `{"outcome":"Answered","status":200,"body":"dGhpZWY="}` // thief
	fake := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	th := l.mustOpenLink(t, nil)
	var mu sync.Mutex // guards what follows, and th's output
	labelled := false
	sub, err := connectAdmin(t).Subscribe("tunnel."+victim+".>", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		labelled = labelled || bytes.Contains(m.Data, []byte(callerLabel))
		id := strings.TrimPrefix(m.Subject, "tunnel."+victim+".")
		replica, _, _ = strings.Cut(id, ".")
		for _, frame := range [][]byte{tunnelFrame(kindAccept, 0, 0, 0, nil), tunnelFrame(kindData, flagFin, 0, 0, []byte(fake))} {
			th.publish("tunnelup."+stolen+"."+id, "", frame)
			answered++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection is the test's
	foreign := counterDelta(t, "frond_tunnel_refused_total", "reason=foreign")
	eventually(t, "an answer for another is counted", func(ctx context.Context) string {
		if missing := call(ctx); missing != "" {
			return missing
		}
		if foreign() == 0 {
			return "it is not"
		}
		return ""
	})
	mu.Lock()
	defer mu.Unlock()
	if !labelled {
		t.Error("no stream to the victim names the caller, so the ears could hear nothing") // the control
	}
	return answered, replica
}

// openStreamToVictim opens streams to the victim's part for devices as a cloudcore does, and calls as the cloud and as the victim. The hub closes each link.
func openStreamToVictim(t *testing.T, l loot, replica string) {
	t.Helper()
	open := tunnelFrame(kindOpen, 0, 0, 0, []byte{config.EdgeDevicePort >> 8, config.EdgeDevicePort & 0xff})
	const id = ".BBBBBBBBBBBBBBBBBBBBBB"
	risen := counterDelta(t, "frond_identity_offences_total", "reason=violation", "node="+stolen)
	for _, name := range []string{"tunnel." + victim + "." + replica + id, "tunnelup." + victim + "." + replica + id, "call.node." + victim + ".device", "call.cloud." + victim + ".device"} {
		th := l.mustOpenLink(t, nil)
		th.publish(name, "", open)
		if said := th.flush(t.Context()); said == "" {
			t.Errorf("%s was taken", name)
		}
	}
	awaitCounter(t, "a foreign call", risen, 1)
}

package kubecalls

import (
	"testing"

	"github.com/frond-edge/frond/api/wire"
)

func TestValidateCall_OnlyPlainAPIRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		request wire.KubeRequest
		fine    bool
	}{
		"get":                 {wire.KubeRequest{Method: "GET", Path: "/api/v1/namespaces/default/secrets/a"}, true},
		"token":               {wire.KubeRequest{Method: "POST", Path: "/api/v1/namespaces/default/serviceaccounts/a/token"}, true},
		"a pod called exec":   {wire.KubeRequest{Method: "GET", Path: "/api/v1/nodes/exec"}, true},
		"list":                {wire.KubeRequest{Method: "GET", Path: "/apis/apps/v1/deployments", Query: "limit=5"}, true},
		"watch":               {wire.KubeRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch=true"}, false},
		"watch as 1":          {wire.KubeRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch=1"}, false},
		"watch without word":  {wire.KubeRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch="}, false},
		"two watches":         {wire.KubeRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch=0&watch=1"}, false},
		"no watch":            {wire.KubeRequest{Method: "GET", Path: "/api/v1/pods", Query: "watch=false"}, true},
		"watch by path":       {wire.KubeRequest{Method: "GET", Path: "/api/v1/watch/pods"}, false},
		"group watch by path": {wire.KubeRequest{Method: "GET", Path: "/apis/apps/v1/watch/deployments"}, false},
		"exec":                {wire.KubeRequest{Method: "POST", Path: "/api/v1/namespaces/a/pods/b/exec"}, false},
		"node proxy":          {wire.KubeRequest{Method: "GET", Path: "/api/v1/nodes/edge-2/proxy"}, false},
		"below node proxy":    {wire.KubeRequest{Method: "GET", Path: "/api/v1/nodes/edge-2/proxy/run/x"}, false},
		"below pod proxy":     {wire.KubeRequest{Method: "GET", Path: "/api/v1/namespaces/a/pods/b/proxy/x/y"}, false},
		"metrics":             {wire.KubeRequest{Method: "GET", Path: "/metrics"}, false},
		"dots":                {wire.KubeRequest{Method: "GET", Path: "/api/v1/../../metrics"}, false},
		"double slash":        {wire.KubeRequest{Method: "GET", Path: "/api//v1/pods"}, false},
		"strange method":      {wire.KubeRequest{Method: "CONNECT", Path: "/api/v1/pods"}, false},
		"broken query":        {wire.KubeRequest{Method: "GET", Path: "/api/v1/pods", Query: "%zz"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := validateCall(tt.request); (err == nil) != tt.fine {
				t.Errorf("permitted(%+v): %v, want fine %v", tt.request, err, tt.fine)
			}
		})
	}
}

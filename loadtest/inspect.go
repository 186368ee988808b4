package loadtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	kuberest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/loadtest/poll"
)

// inspectNodes queries the cloudcores, as frond status does.
func inspectNodes(ctx context.Context, w *Environment) (inspect.Nodes, error) {
	var answer inspect.Nodes
	cfg, err := clientcmd.BuildConfigFromFlags("", w.cluster.Kubeconfig())
	if err != nil {
		return answer, fmt.Errorf("read kubeconfig: %w", err)
	}
	cfg.ServerName, cfg.CAFile, cfg.CAData = inspect.ServerName, w.cluster.HubCA(), nil
	transport, err := kuberest.TransportFor(cfg)
	if err != nil {
		return answer, fmt.Errorf("read kubeconfig: %w", err)
	}
	var faults []error
	for server := range strings.SplitSeq(w.cluster.Cloudcores(), ",") {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+inspect.PathNodes, nil)
		if err != nil {
			return answer, err
		}
		request.Close = true
		response, err := transport.RoundTrip(request)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		err = json.NewDecoder(response.Body).Decode(&answer)
		return answer, errors.Join(err, response.Body.Close())
	}
	return answer, errors.Join(faults...)
}

// nodeOwner returns the cloudcore that serves a node.
func nodeOwner(ctx context.Context, w *Environment, node string) (string, error) {
	all, err := inspectNodes(ctx, w)
	if err != nil {
		return "", err
	}
	for i := range all.Nodes {
		if n := &all.Nodes[i]; n.Name == node && n.Owner != "" {
			return n.Owner, nil
		}
	}
	return "", fmt.Errorf("no replica owns %s", node)
}

// awaitMembers waits until these cloudcores, and no other, are live.
func awaitMembers(ctx context.Context, w *Environment, want ...string) error {
	return poll.Until(ctx, fmt.Sprint("the cloudcores are ", want), func(ctx context.Context) (bool, error) {
		all, err := inspectNodes(ctx, w)
		return err == nil && slices.Equal(all.Live, want), nil
	})
}

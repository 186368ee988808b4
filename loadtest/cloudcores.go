package loadtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/internal/devcluster/request"
	"github.com/frond-edge/frond/loadtest/poll"
)

// inspectNodes queries the cloudcores, as frond status does.
func inspectNodes(ctx context.Context, w *environment) (answer inspect.Nodes, err error) {
	cfg := rest.CopyConfig(w.config)
	cfg.ServerName, cfg.CAFile, cfg.CAData = inspect.ServerName, w.cluster.HubCA(), nil
	secret, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return answer, fmt.Errorf("read kubeconfig: %w", err)
	}
	for server := range strings.SplitSeq(w.cluster.Cloudcores(), ",") {
		fault := request.Send(ctx, &http.Transport{TLSClientConfig: secret}, http.MethodGet, server+inspect.PathNodes, &answer)
		if fault == nil {
			return answer, nil
		}
		err = errors.Join(err, fault)
	}
	return answer, err
}

// findOwner finds the cloudcore that serves a node.
func findOwner(ctx context.Context, w *environment, node string) (string, error) {
	all, err := inspectNodes(ctx, w)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(all.Nodes, func(n inspect.Node) bool { return n.Name == node && n.Owner != "" })
	if i < 0 {
		return "", fmt.Errorf("no replica owns %s", node)
	}
	return all.Nodes[i].Owner, nil
}

// awaitMembers waits until these cloudcores, and no other, are live.
func awaitMembers(ctx context.Context, w *environment, want ...string) error {
	return poll.Until(ctx, fmt.Sprint("the cloudcores are ", want), func(ctx context.Context) (bool, error) {
		all, err := inspectNodes(ctx, w)
		return err == nil && slices.Equal(all.Live, want), nil
	})
}

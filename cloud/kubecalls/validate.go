package kubecalls

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/frond-edge/frond/api/wire"
)

// validateCall refuses requests that a single request and reply cannot carry, and paths that are not in canonical form.
func validateCall(req wire.KubeRequest) error {
	switch req.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return fmt.Errorf("method %.20q is not for calls", req.Method)
	}
	if path.Clean(req.Path) != req.Path || !slices.ContainsFunc(callPaths(), func(p string) bool {
		return req.Path == p || strings.HasPrefix(req.Path, p+"/")
	}) {
		return fmt.Errorf("path %.200q is not a Kubernetes API path", req.Path)
	}
	query, err := url.ParseQuery(req.Query)
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	for _, watch := range query["watch"] {
		if watch != "0" && watch != "false" { // an apiserver takes an empty value as true
			return errors.New("a watch does not fit in one call")
		}
	}
	if segments := strings.Split(req.Path, "/"); len(segments) > 3 && segments[1] == "api" && segments[3] == "watch" ||
		len(segments) > 4 && segments[1] == "apis" && segments[4] == "watch" {
		return errors.New("a watch does not fit in one call")
	}
	if stream := streamSubresource(req.Path); stream != "" {
		return fmt.Errorf("%s is a stream, not a call", stream)
	}
	return nil
}

// callPaths returns the path prefixes of a Kubernetes API and of its descriptions.
func callPaths() []string { return []string{"/api", "/apis", "/openapi/v3", "/version"} }

// streamSubresource returns the subresource of a path if it is one that carries a stream; the path after /proxy belongs to the target.
func streamSubresource(requested string) string {
	segments := strings.Split(strings.TrimPrefix(requested, "/"), "/")
	start := 3 // api, version, resource
	if segments[0] == "apis" {
		start = 4
	}
	if len(segments) > start && segments[start-1] == "namespaces" {
		start += 2
	}
	if len(segments) <= start+1 {
		return "" // a collection or an object
	}
	switch subresource := segments[start+1]; subresource {
	case "proxy", "exec", "attach", "portforward", "log":
		return subresource
	}
	return ""
}

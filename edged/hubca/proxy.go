package hubca

import (
	"net/url"

	"golang.org/x/net/http/httpproxy"
)

// Proxy returns the function that finds proxies to hubs, for Config: the configured proxy, or else the environment's for HTTPS.
func Proxy(configured string, environment *httpproxy.Config) func(*url.URL) (*url.URL, error) {
	if configured != "" {
		return func(*url.URL) (*url.URL, error) { return url.Parse(configured) }
	}
	find := environment.ProxyFunc()
	return func(hub *url.URL) (*url.URL, error) { return find(&url.URL{Scheme: "https", Host: hub.Host}) }
}

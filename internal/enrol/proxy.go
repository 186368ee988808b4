package enrol

import (
	"net/url"

	"golang.org/x/net/http/httpproxy"
)

// Proxy finds proxies to hubs, for Config: the one that is configured, or else what the environment says of HTTPS.
func Proxy(configured string, environment *httpproxy.Config) func(*url.URL) (*url.URL, error) {
	if configured != "" {
		return func(*url.URL) (*url.URL, error) { return url.Parse(configured) }
	}
	find := environment.ProxyFunc()
	return func(hub *url.URL) (*url.URL, error) { return find(&url.URL{Scheme: "https", Host: hub.Host}) }
}

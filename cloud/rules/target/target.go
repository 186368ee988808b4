// Package target sends requests to the targets of rules. Whoever may write a Rule chooses the URL, so it must not reach what only cloudcore can: an address is
// checked when it is dialled, after names were resolved, and private, link-local, loopback and metadata addresses are refused unless the configuration allows
// them. No proxy of the environment is used and no redirection followed. Certificates are verified.
package target

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
)

const (
	dialTimeout = 10 * time.Second
	// requestTimeout bounds a request with its answer.
	requestTimeout = 30 * time.Second
	// maxAnswerText is how much of an answer is kept for an error, maxAnswer how much is read so that the connection can be used again.
	maxAnswerText = 200
	maxAnswer     = 64 << 10
	maxHeaders    = 64 << 10
	// idlePerHost bounds the connections that wait for a target's next message.
	idlePerHost = 4
	idleTimeout = 60 * time.Second
)

// ErrDenied says that a target's address is not allowed.
var ErrDenied = errors.New("the address is not allowed as a target: add its network to rules.allowedTargets of cloudcore")

// ErrUnusable says that no request can be made of a URL or a header.
var ErrUnusable = errors.New("no request can be made")

// Request is a POST.
type Request struct {
	URL    string
	Header map[string]string
	Body   []byte
}

// Answer is what the target answered.
type Answer struct {
	Code int
	// Text is the beginning of the body, fit for a status.
	Text string
}

// Client sends requests. It may be used by several goroutines.
type Client struct{ http *http.Client }

// New returns a Client that may send to public addresses and to those of the allowed networks.
func New(allowed []netip.Prefix) *Client {
	dialer := &net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error { return check(address, allowed) }}
	return &Client{http: &http.Client{
		Timeout:       requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: dialTimeout, ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: idlePerHost, IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: maxHeaders,
		},
	}}
}

// Close closes the connections that wait.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Post sends a request once. Its errors do not contain the URL, which may hold a password.
func (c *Client) Post(ctx context.Context, r Request) (Answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return Answer{}, fmt.Errorf("%w: the URL of the target cannot be used", ErrUnusable)
	}
	for name, value := range r.Header {
		if !httpguts.ValidHeaderFieldValue(value) {
			return Answer{}, fmt.Errorf("%w: the header %s has a control character", ErrUnusable, name)
		}
		request.Header.Set(name, value)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err
		}
		return Answer{}, fmt.Errorf("send to the target: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	// The status decides; a body that breaks off changes nothing.
	body, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	return Answer{Code: answer.StatusCode, Text: shortText(body)}, nil
}

// shortText returns the beginning of a body as one line, or "" if it is no text.
func shortText(body []byte) string {
	text := string(body[:min(len(body), maxAnswerText)])
	for range utf8.UTFMax - 1 { // a character that was cut
		if !utf8.ValidString(text) && text != "" && len(body) > maxAnswerText {
			text = text[:len(text)-1]
		}
	}
	if !utf8.ValidString(text) {
		return ""
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text))
}

// denied are networks beside those that netip knows by name: addresses of the provider's or the own network, and those of the cloud's metadata that are
// public in form.
func denied() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"),
		netip.MustParsePrefix("100.64.0.0/10"),    // carriers' NAT; Alibaba Cloud has its metadata there
		netip.MustParsePrefix("192.0.0.0/24"),     // Oracle Cloud has its metadata there
		netip.MustParsePrefix("168.63.129.16/32"), // Azure's host
		netip.MustParsePrefix("198.18.0.0/15"),
		netip.MustParsePrefix("240.0.0.0/4"),
		netip.MustParsePrefix("64:ff9b::/96"), // these five contain addresses of IPv4
		netip.MustParsePrefix("::/96"),
		netip.MustParsePrefix("2001::/32"), // Teredo
		netip.MustParsePrefix("64:ff9b:1::/48"),
		netip.MustParsePrefix("2002::/16"),
		netip.MustParsePrefix("fec0::/10"),
	}
}

// check refuses an address, host:port, that is not public and not allowed.
func check(address string, allowed []netip.Prefix) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q", ErrDenied, address)
	}
	addr := at.Addr().Unmap().WithZone("")
	for _, network := range allowed {
		if network.Contains(addr) {
			return nil
		}
	}
	refused := !addr.IsGlobalUnicast() || addr.IsPrivate() // loopback, link-local, multicast and unspecified addresses are no global unicast
	for _, network := range denied() {
		refused = refused || network.Contains(addr)
	}
	if refused {
		return fmt.Errorf("%s: %w", addr, ErrDenied)
	}
	return nil
}

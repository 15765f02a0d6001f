package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"

	"github.com/shunt-net/shunt/internal/edge"
)

// hook posts alerts as JSON.
type hook struct {
	target edge.AlertTarget
	client *http.Client
}

func newHook(t edge.AlertTarget) *hook {
	return &hook{t, &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true, // alerts are rare
			ForceAttemptHTTP2: true,
			TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12},
		},
		// Followed, a POST would become a GET, or the headers' secrets another site's.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (h *hook) send(ctx context.Context, m message) error {
	to, err := address(h.target)
	if err != nil {
		return err
	}
	extra, err := headers(h.target.HeadersFile)
	if err != nil {
		return err
	}
	body, err := m.encode()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil || req.URL.Host == "" || req.URL.Scheme != "http" && req.URL.Scheme != "https" {
		return errors.New("its url is not an address that can be posted to")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "shunt")
	for name, values := range extra {
		if name == "Host" {
			req.Host = values[0]
			continue
		}
		req.Header[name] = values
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return explain(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		return answered(resp.StatusCode)
	}
	return nil
}

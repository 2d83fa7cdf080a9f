package kube

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/internal/config"
)

const (
	// fetchWithin is the timeout of fetching an apiserver's root certificates, and maxRoots their largest size in
	// bytes.
	fetchWithin = 30 * time.Second
	maxRoots    = 1 << 20
)

// remoteConfig returns the client configuration for an apiserver that is configured by its URL. client-go reads the
// token again every minute, and immediately after the apiserver refused it.
func remoteConfig(c config.Kube) (*rest.Config, error) {
	cfg := &rest.Config{Host: c.RemoteAPIURL, BearerTokenFile: c.RemoteSATokenPath}
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return noRedirects{rt} })
	if c.RemoteCAURL == "" {
		cfg.CAFile = c.RemoteCAPath // the system's roots without it
		return cfg, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), fetchWithin)
	defer cancel()
	roots, err := fetchRoots(ctx, http.DefaultClient, c.RemoteCAURL, c.RemoteCAHash)
	if err != nil {
		return nil, fmt.Errorf("roots of %s: %w", c.RemoteAPIURL, err)
	}
	cfg.CAData = roots
	return cfg, nil
}

// noRedirects refuses redirects: another cluster's apiserver must not make this pod send requests to services that only
// the pod can reach.
type noRedirects struct{ http.RoundTripper }

func (n noRedirects) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := n.RoundTripper.RoundTrip(r)
	if err == nil && answer.StatusCode >= 300 && answer.StatusCode < 400 && answer.Header.Get("Location") != "" {
		answer.Body.Close()
		return nil, fmt.Errorf("%s redirects to %q, which is not followed: set kube.remoteAPIURL to the apiserver itself",
			r.URL.Host, answer.Header.Get("Location"))
	}
	return answer, err
}

// fetchRoots fetches certificates, PEM. Without a hash only the transport proves them, so internal/config requires
// https then. With a hash, only certificates with that public key are returned.
func fetchRoots(ctx context.Context, client *http.Client, url, hash string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	// A redirect to plain http would bypass the transport that proves the certificates.
	checked := *client
	checked.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	answer, err := checked.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, answer.Status)
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxRoots+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	if len(data) > maxRoots {
		return nil, fmt.Errorf("%s has more than %d bytes", url, maxRoots)
	}
	var roots []byte
	others := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", url, err)
		}
		sum := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
		if hash != "" && hash != "sha256:"+hex.EncodeToString(sum[:]) {
			others++
			continue
		}
		roots = append(roots, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	switch {
	case roots != nil:
		return roots, nil
	case others > 0:
		return nil, fmt.Errorf("%s has %d certificates, and none has the public key %s (kube.remoteCAHash)", url,
			others, hash)
	}
	return nil, fmt.Errorf("%s: it has no certificate in PEM", url)
}

package kubetest

import (
	"net/http"
	"strings"
	"sync"
)

// RoundTripper adapts a function to http.RoundTripper, for rest.Config.Wrap.
type RoundTripper func(*http.Request) (*http.Response, error)

func (f RoundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Requests records the requests of clients as method and path, without watches. Its method Wrap is an argument for
// rest.Config.Wrap.
type Requests struct {
	mu  sync.Mutex
	all []string
}

func (r *Requests) Wrap(next http.RoundTripper) http.RoundTripper {
	return RoundTripper(func(req *http.Request) (*http.Response, error) {
		if !strings.Contains(req.URL.RawQuery, "watch=") {
			r.mu.Lock()
			r.all = append(r.all, req.Method+" "+req.URL.Path)
			r.mu.Unlock()
		}
		return next.RoundTrip(req)
	})
}

// Take returns the requests since the last Take.
func (r *Requests) Take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/test/testbed"
)

// client sends requests as a pod: this process opens sockets in the pod's network namespace. Each request resolves the
// name at the cluster's CoreDNS and makes a new connection through kube-proxy.
type client struct {
	name     string
	resolver *net.Resolver
	http     *http.Client
}

func newClient(ctx context.Context, t *testing.T, c *testbed.Cluster, pod string) *client {
	t.Helper()
	running, err := c.Pod(ctx, "shop", pod)
	must(t, err)
	dns, err := c.Client.CoreV1().Services("kube-system").Get(ctx, "kube-dns", metav1.GetOptions{})
	must(t, err)
	server := net.JoinHostPort(dns.Spec.ClusterIP, "53")
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return running.Netns.DialContext(ctx, network, server)
	}}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		addresses, err := resolver.LookupNetIP(ctx, "ip4", host+".") // the dot avoids the search domains of this machine
		if err != nil {
			return nil, err
		}
		return running.Netns.DialContext(ctx, network, net.JoinHostPort(addresses[0].String(), port))
	}
	return &client{c.Name + "/" + pod, resolver,
		&http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// ask sends one request to echo.
func (c *client) ask(ctx context.Context, url string) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return a, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return a, errors.New(response.Status)
	}
	return a, json.NewDecoder(response.Body).Decode(&a)
}

// lookup returns the sorted addresses of a name.
func (c *client) lookup(ctx context.Context, name string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	addresses, err := c.resolver.LookupHost(ctx, name+".")
	slices.Sort(addresses)
	return addresses, err
}

// load sends requests continuously from several workers of one client.
type load struct {
	client *client
	end    context.CancelFunc
	ended  sync.WaitGroup

	mu       sync.Mutex
	answered map[string]int // by pod
	failed   []string
}

// loadWorkers with loadPause after each request give at most 40 requests per second.
const (
	loadWorkers = 4
	loadPause   = 100 * time.Millisecond
)

func (c *client) load(ctx context.Context, t *testing.T, url string) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{client: c, end: cancel, answered: map[string]int{}}
	for range loadWorkers {
		l.ended.Go(func() {
			for ctx.Err() == nil {
				a, err := c.ask(ctx, url)
				if ctx.Err() != nil {
					return
				}
				l.count(a, err)
				select {
				case <-time.After(loadPause):
				case <-ctx.Done():
				}
			}
		})
	}
	t.Cleanup(func() { l.stop() })
	return l
}

func (l *load) count(a answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed = append(l.failed, fmt.Sprintf("%s: %v", time.Now().Format("15:04:05.000"), err))
		return
	}
	l.answered[a.Pod]++
}

// seen returns the number of answers so far from pods that satisfy which.
func (l *load) seen(which func(pod string) bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for pod, answers := range l.answered {
		if which(pod) {
			n += answers
		}
	}
	return n
}

// reset forgets the answers and the failures so far.
func (l *load) reset() {
	l.recount()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = nil
}

// recount resets the answers by pod, but not the failures.
func (l *load) recount() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.answered)
}

// failures returns the failures so far.
func (l *load) failures() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.failed)
}

// stop ends the load. Its counters can be read afterwards.
func (l *load) stop() *load {
	l.end()
	l.ended.Wait()
	return l
}

func (l *load) String() string {
	total := l.seen(func(string) bool { return true })
	failed := l.failures()
	return fmt.Sprintf("%s: %d answered, %d failed %q", l.client.name, total, len(failed), failed[:min(3, len(failed))])
}

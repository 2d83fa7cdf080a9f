package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// tellWaiting is the interval of the log message while a start waits for its first certificate.
const tellWaiting = 10 * time.Second

// followAgain is the pause before the watch is restarted after an answer that the library treats as final.
const followAgain = 5 * time.Second

// workload is the backend for certificates from SPIRE, or another SPIFFE implementation:
// https://github.com/spiffe/spiffe/blob/main/standards/SPIFFE_Workload_API.md. One goroutine watches the API until
// Close.
//
// It does not use the library's X509Source, which gives up silently and permanently after one answer Canceled or
// InvalidArgument.
type workload struct {
	address string
	// own is the ID that the certificate must have; the zero ID for any.
	own    spiffeid.ID
	client *workloadapi.Client
	stop   context.CancelFunc
	done   chan struct{}
	// first is closed after the API's first answer.
	first     chan struct{}
	firstOnce sync.Once

	mu sync.Mutex
	// svid is the last certificate of ours; nil if there was none.
	svid    *x509svid.SVID
	bundles *x509bundle.Set
	// given are the IDs of the API's last answer, if none was ours.
	given []string
	// failed is the last error of the API, empty after a success.
	failed string
}

// openWorkload waits, until ctx ends, for the API's first answer.
func openWorkload(ctx context.Context, address string, own spiffeid.ID) (*workload, error) {
	client, err := workloadapi.New(ctx, workloadapi.WithAddr(address))
	if err != nil {
		return nil, fmt.Errorf("the Workload API %s: %w", address, err)
	}
	follow, stop := context.WithCancel(context.Background())
	w := &workload{address: address, own: own, client: client, stop: stop, done: make(chan struct{}),
		first: make(chan struct{})}
	go w.follow(follow)
	if err := w.wait(ctx); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *workload) wait(ctx context.Context) error {
	started := time.Now()
	tick := time.NewTicker(tellWaiting)
	defer tick.Stop()
	for {
		select {
		case <-w.first:
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.svid == nil {
				return fmt.Errorf("the Workload API %s gives a certificate of %s, and this part has to be %s: change its "+
					"registration entry, or the configuration's cluster",
					w.address, strings.Join(w.given, ", "), w.own)
			}
			return nil
		case <-tick.C:
			slog.Warn("waiting for a certificate from the Workload API: does its agent run, is the socket mounted, has this "+
				"part a registration entry?",
				"workloadAPI", w.address, "id", w.own, "waited", time.Since(started).Round(time.Second), "error", w.reason())
		case <-ctx.Done():
			return fmt.Errorf("waiting for a certificate from the Workload API %s: %w (%s)", w.address, ctx.Err(), w.reason())
		}
	}
}

func (w *workload) reason() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == "" {
		return "no answer yet"
	}
	return w.failed
}

// follow watches the API until ctx ends. The library retries with a growing pause all errors but those that it treats
// as final.
func (w *workload) follow(ctx context.Context) {
	defer close(w.done)
	for {
		err := w.client.WatchX509Context(ctx, w)
		if ctx.Err() != nil {
			return
		}
		w.OnX509ContextWatchError(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(followAgain):
		}
	}
}

func (w *workload) OnX509ContextUpdate(update *workloadapi.X509Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given, w.failed, w.bundles = nil, "", update.Bundles
	defer w.firstOnce.Do(func() { close(w.first) })
	for _, svid := range update.SVIDs {
		if svid.ID == w.own || w.own.IsZero() {
			w.svid = svid
			return
		}
		w.given = append(w.given, svid.ID.String())
	}
	// An update without ours must not drop the one that still works.
	if w.svid != nil {
		slog.Warn("the Workload API no longer gives a certificate of this part; the last one is kept until it expires",
			"workloadAPI", w.address, "id", w.own, "given", w.given, "expires", w.svid.Certificates[0].NotAfter)
	}
}

// OnX509ContextWatchError implements workloadapi.X509ContextWatcher. Earlier certificates stay in use.
func (w *workload) OnX509ContextWatchError(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil || err.Error() == w.failed {
		return
	}
	w.failed = err.Error()
	if w.svid != nil { // before that, wait reports it
		slog.Warn("cannot watch the Workload API; its last certificates stay in use", "workloadAPI", w.address,
			"expires", w.svid.Certificates[0].NotAfter, "error", err)
	}
}

func (w *workload) Close() error {
	w.stop()
	<-w.done
	if err := w.client.Close(); err != nil {
		return fmt.Errorf("the Workload API %s: %w", w.address, err)
	}
	return nil
}

func (w *workload) GetX509SVID() (*x509svid.SVID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.svid, nil // openWorkload returns none without
}

func (w *workload) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	w.mu.Lock()
	bundles := w.bundles
	w.mu.Unlock()
	bundle, ok := bundles.Get(td)
	if !ok || bundle.Empty() {
		return nil, fmt.Errorf("cluster %q is not trusted: the Workload API %s gives no root certificates of its trust "+
			"domain: federate this part's registration entry with it", td.Name(), w.address)
	}
	return bundle, nil
}

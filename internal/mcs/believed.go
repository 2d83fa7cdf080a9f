package mcs

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

// maxRead bounds the events that one question about the definitions is for.
const maxRead = 1024

// believed passes events on until one deletes an object while the API is not served: then it ends with an error after
// which a reflector lists. It asks once for all deletions that came before it asks.
type believed struct {
	source watch.Interface
	served func(context.Context) error
	read   chan watch.Event
	result chan watch.Event
	stop   context.CancelFunc
}

// newBelieved starts the goroutines that pass events on; they end with ctx, with the source or with Stop.
func newBelieved(ctx context.Context, source watch.Interface, served func(context.Context) error) watch.Interface {
	ctx, stop := context.WithCancel(ctx)
	b := &believed{source: source, served: served, stop: stop, read: make(chan watch.Event, maxRead),
		result: make(chan watch.Event)}
	go b.receive(ctx)
	go b.pass(ctx)
	return b
}

// receive reads events while others are asked about.
func (b *believed) receive(ctx context.Context) {
	defer close(b.read)
	defer b.source.Stop()
	for {
		select {
		case event, open := <-b.source.ResultChan():
			if !open {
				return
			}
			select {
			case b.read <- event:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (b *believed) pass(ctx context.Context) {
	defer close(b.result)
	defer b.stop()
	for event := range b.read {
		events := []watch.Event{event}
		for range len(b.read) { // those that are there already
			events = append(events, <-b.read)
		}
		var gone error
		asked := false
		for _, event := range events {
			if event.Type == watch.Deleted && !asked {
				asked, gone = true, b.served(ctx)
			}
			if event.Type == watch.Deleted && gone != nil {
				event = watch.Event{Type: watch.Error, Object: &apierrors.NewResourceExpired(gone.Error()).ErrStatus}
			}
			select {
			case b.result <- event:
			case <-ctx.Done():
				return
			}
			if event.Type == watch.Error && gone != nil {
				return
			}
		}
	}
}

// Stop implements watch.Interface.
func (b *believed) Stop() { b.stop() }

// ResultChan implements watch.Interface.
func (b *believed) ResultChan() <-chan watch.Event { return b.result }

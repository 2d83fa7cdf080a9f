package broker

import (
	"context"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/policy"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// engines are the engines of the features; nil for a feature that is off.
type engines struct {
	tunnels  *mesh.Engine
	services *services.Engine
	sets     *policy.Engine
	all      []engine // those that are on
}

type engine interface {
	Run(context.Context) error
	Queue() *replica.Queue
	Follow([]config.Remote)
	// Remind repeats the warnings about problems for which there was no room.
	Remind()
	Findings() []finding.Finding
}

// braking is an engine that retains objects when most of a remote's would be removed.
type braking interface {
	ResyncDue(cluster string) bool
	Retained(cluster string, kind semaphorev1.Kind) (objects int, since time.Time)
	Release(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int
}

func newEngines(cfg *config.Broker, peers mesh.Peers, warn problem.Warn, now func() time.Time) engines {
	var e engines
	if cfg.Features.Has(config.Encryption) {
		e.tunnels = mesh.NewEngine(cfg, peers, warn)
		e.all = append(e.all, e.tunnels)
	}
	if cfg.Features.Has(config.Services) {
		e.services = services.New(cfg, warn, now)
		e.all = append(e.all, e.services)
	}
	if cfg.Features.Has(config.Policy) {
		e.sets = policy.NewEngine(cfg, warn, now)
		e.all = append(e.all, e.sets)
	}
	return e
}

// Take puts the changes of a remote's replica into the queue of each engine: engines are the federation server's Sink.
func (e engines) Take(cluster string, r replica.Result) {
	for _, one := range e.all {
		one.Queue().Push(cluster, r)
	}
}

// Room returns nil if all engines have room for more changes of a remote; else a channel that is closed when the first
// that has none may have some.
func (e engines) Room(cluster string) <-chan struct{} {
	for _, one := range e.all {
		if room := one.Queue().Room(cluster); room != nil {
			return room
		}
	}
	return nil
}

// every returns the engines that are a T.
func every[T any](e engines) (all []T) {
	for _, one := range e.all {
		if is, ok := one.(T); ok {
			all = append(all, is)
		}
	}
	return all
}

// Remind repeats the warnings about problems for which there was no room.
func (e engines) Remind() {
	for _, one := range e.all {
		one.Remind()
	}
}

// ResyncDue reports whether another snapshot of a remote would release what its first one seemed to withdraw.
func (e engines) ResyncDue(cluster string) bool {
	return slices.ContainsFunc(every[braking](e), func(b braking) bool { return b.ResyncDue(cluster) })
}

// Retained returns how many objects that an earlier broker wrote for a kind of a remote are retained, and since when.
// One engine at most has objects for a kind.
func (e engines) Retained(cluster string, kind semaphorev1.Kind) (objects int, since time.Time) {
	for _, b := range every[braking](e) {
		if objects, since = b.Retained(cluster, kind); objects > 0 {
			break
		}
	}
	return objects, since
}

// Release releases the objects that the first snapshot of a remote withdrew and the brake retains, of some kinds or of
// all. It returns the number of removed objects, by the kind of their sources.
func (e engines) Release(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int {
	released := map[semaphorev1.Kind]int{}
	for _, b := range every[braking](e) {
		for kind, n := range b.Release(cluster, kinds...) {
			released[kind] += n
		}
	}
	return released
}

func (e engines) findings() (found []finding.Finding) {
	for _, one := range e.all {
		found = append(found, one.Findings()...)
	}
	return found
}

package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/mesh"
	"github.com/kube-semaphore/semaphore/broker/policy"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// engines are the engines of the features; nil for a feature that is off. They are the federation server's Sink: the
// changes of a remote's replica go into the queue of each.
type engines struct {
	tunnels  *mesh.Engine
	services *services.Engine
	sets     *policy.Engine
	brake    config.Brake
	warn     problem.Warn
}

// engine is the engine of any feature.
type engine interface {
	Run(context.Context) error
	Queue() *replica.Queue
	// Follow sets the configured remotes.
	Follow([]config.Remote)
	// Remind repeats the warnings about problems for which there was no room.
	Remind()
	Findings() []finding.Finding
}

// braking is an engine that retains objects when most of a remote's would be removed.
type braking interface {
	ResyncDue(cluster string) bool
	Release(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int
}

func newEngines(cfg *config.Broker, peers mesh.Peers, warn problem.Warn, now func() time.Time) engines {
	e := engines{warn: warn, brake: cfg.Brake}
	if cfg.Features.Has(config.Encryption) {
		e.tunnels = mesh.NewEngine(cfg, peers, warn, now)
	}
	if cfg.Features.Has(config.Services) {
		e.services = services.New(cfg, warn, now)
	}
	if cfg.Features.Has(config.Policy) {
		e.sets = policy.NewEngine(cfg, warn, now)
	}
	return e
}

func (e engines) all() (all []engine) {
	if e.tunnels != nil {
		all = append(all, e.tunnels)
	}
	if e.services != nil {
		all = append(all, e.services)
	}
	if e.sets != nil {
		all = append(all, e.sets)
	}
	return all
}

func (e engines) braking() (all []braking) {
	for _, one := range e.all() {
		if b, ok := one.(braking); ok {
			all = append(all, b)
		}
	}
	return all
}

func (e engines) collectors() (all []prometheus.Collector) {
	for _, one := range e.all() {
		if c, ok := one.(prometheus.Collector); ok {
			all = append(all, c)
		}
	}
	return all
}

// Take implements federation.Sink.
func (e engines) Take(cluster string, r replica.Result) {
	for _, refused := range r.Refused {
		e.warn(cluster, "Refused "+refused.Key.String()+" "+string(refused.Code), finding.Refused,
			fmt.Sprintf("%s of cluster %s: %s (%s)", refused.Key, cluster, refused.Reason, refused.Code))
	}
	for _, h := range r.Retained {
		if h.Objects == h.Total { // those that follow belong to the same withdrawal
			kind := semaphorev1.KindName(h.Kind)
			e.warn(cluster, "HeldBack "+kind, finding.HeldBack, fmt.Sprintf(
				"cluster %s withdrew so many %ss that the broker retains %d of %d %s",
				cluster, kind, h.Total, h.Peak, e.brake.Until(cluster)))
		}
	}
	for _, one := range e.all() {
		one.Queue().Push(cluster, r)
	}
}

// Remind repeats the warnings about problems for which there was no room.
func (e engines) Remind() {
	for _, one := range e.all() {
		one.Remind()
	}
}

// Room waits until all engines have room for more changes of a remote. It calls waits before the first wait.
func (e engines) Room(ctx context.Context, cluster string, waits func() error) error {
	for _, one := range e.all() {
		if !one.Queue().Full(cluster) {
			continue
		}
		if err := waits(); err != nil {
			return err
		}
		if err := one.Queue().WaitForRoom(ctx, cluster); err != nil {
			return err
		}
	}
	return nil
}

// ResyncDue reports whether another snapshot of a remote would release what its first one seemed to withdraw.
func (e engines) ResyncDue(cluster string) bool {
	for _, b := range e.braking() {
		if b.ResyncDue(cluster) {
			return true
		}
	}
	return false
}

// Release releases the objects that the first snapshot of a remote withdrew and the brake retains, of some kinds or of
// all. It returns the number of removed objects, by the kind of their sources.
func (e engines) Release(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int {
	released := map[semaphorev1.Kind]int{}
	for _, b := range e.braking() {
		for kind, n := range b.Release(cluster, kinds...) {
			released[kind] += n
		}
	}
	return released
}

// findings returns what is wrong with what remotes export.
func (e engines) findings() (found []finding.Finding) {
	for _, one := range e.all() {
		found = append(found, one.Findings()...)
	}
	return found
}

package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/networksets"
	"github.com/kube-semaphore/semaphore/broker/queue"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/broker/tunnels"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// engines are those of the features; nil for one that is off. They are the federation server's Sink: what a remote's replica
// took goes into the queue of each.
type engines struct {
	tunnels  *tunnels.Engine
	services *services.Engine
	sets     *networksets.Engine
	warn     apply.Warn
}

// engine is one of any feature.
type engine interface {
	Run(context.Context) error
	Queue() *queue.Queue
	Problems() []string
}

// braking is an engine that keeps what most of a remote's objects would be to lose.
type braking interface {
	ResyncDue(cluster string) bool
	Release(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int
}

func newEngines(cfg *config.Broker, peers tunnels.Peers, warn apply.Warn, now func() time.Time) engines {
	e := engines{warn: warn}
	if cfg.Features.Has(config.Encryption) {
		e.tunnels = tunnels.New(cfg, peers, warn, now)
	}
	if cfg.Features.Has(config.Services) {
		e.services = services.New(cfg, warn, now)
	}
	if cfg.Features.Has(config.Policy) {
		e.sets = networksets.New(cfg, warn, now)
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
		e.warn(cluster, "Refused "+refused.Key.String()+" "+string(refused.Code), "Refused",
			fmt.Sprintf("%s of cluster %s: %s (%s)", refused.Key, cluster, refused.Reason, refused.Code))
	}
	for _, h := range r.HeldBack {
		if h.Objects == h.Total { // those that follow belong to the same withdrawal
			kind := semaphorev1.KindName(h.Kind)
			e.warn(cluster, "HeldBack "+kind, "HeldBack", fmt.Sprintf(
				"cluster %s has withdrawn so many %ss that %d of %d stay until it says so again, or `semaphorectl brake release %s`", cluster, kind, h.Total, h.Of, cluster))
		}
	}
	for _, one := range e.all() {
		one.Queue().Push(cluster, r)
	}
}

// Room waits until all engines have room for more of a remote. waits is called before the first wait.
func (e engines) Room(ctx context.Context, cluster string, waits func() error) error {
	for _, one := range e.all() {
		if !one.Queue().Full(cluster) {
			continue
		}
		if err := waits(); err != nil {
			return err
		}
		if err := one.Queue().Room(ctx, cluster); err != nil {
			return err
		}
	}
	return nil
}

// ResyncDue says whether another whole snapshot of a remote would let go what its first one seemed to withdraw.
func (e engines) ResyncDue(cluster string) bool {
	for _, b := range e.braking() {
		if b.ResyncDue(cluster) {
			return true
		}
	}
	return false
}

// Release lets go what the first snapshot of a remote withdrew and the brake holds, of some kinds or of all. It returns
// how many objects go, by the kind that they were made for.
func (e engines) Release(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int {
	released := map[semaphorev1.Kind]int{}
	for _, b := range e.braking() {
		for kind, n := range b.Release(cluster, kinds...) {
			released[kind] += n
		}
	}
	return released
}

// Problems are what is wrong by what remotes export, a line each.
func (e engines) Problems() (lines []string) {
	for _, one := range e.all() {
		lines = append(lines, one.Problems()...)
	}
	return lines
}

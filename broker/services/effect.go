package services

import (
	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// Affected is a Service that has endpoints which a drain covers.
type Affected struct {
	Service string
	// Covered is the number of covered endpoints that are ready at their source; Used of them are in use now.
	Covered, Used int
	// Left is the number of other ready endpoints that the Service has or could use.
	Left int
}

// Affected returns the Services that a drain affects or would affect, sorted by name.
func (e *Engine) Affected(d choice.Drain) (out []Affected) {
	set := choice.NewDrains(d)
	e.views(func(v mirror.View) {
		if a, affected := affects(set, v); affected {
			out = append(out, a)
		}
	})
	return out
}

func affects(set choice.Drains, v mirror.View) (a Affected, affected bool) {
	a.Service = v.Service
	for _, c := range v.Clusters {
		withdrawn := v.Global && c.Gone && v.Settings().WhenGone == config.Withdraw
		for e := range c.Endpoints {
			_, covered := set.Covers(c.Cluster, c.Of.Namespace, c.Of.Name, e.Address)
			affected = affected || covered
			usable := !e.Drained && !e.Unreached
			switch {
			case !e.Ready:
			case covered:
				a.Covered++
				a.Used += count(c.InUse && usable)
			case usable && !withdrawn:
				a.Left++
			}
		}
	}
	return a, affected
}

type Drained struct {
	// Endpoints is the number of drained endpoints that are ready at their source; Services have at least one of
	// them.
	Endpoints, Services int
}

// Drained returns the effect of the active drains. An endpoint counts for the first drain that covers it.
func (e *Engine) Drained() map[choice.Target]Drained {
	out := map[choice.Target]Drained{}
	e.views(func(v mirror.View) {
		drains, seen := e.plan.Drains(), map[choice.Target]bool{}
		for _, c := range v.Clusters {
			for endpoint := range c.Endpoints {
				if !endpoint.Drained || !endpoint.Ready {
					continue
				}
				if d, ok := drains.Covers(c.Cluster, c.Of.Namespace, c.Of.Name, endpoint.Address); ok {
					n := out[d.Target]
					n.Endpoints++
					n.Services += count(!seen[d.Target])
					out[d.Target], seen[d.Target] = n, true
				}
			}
		}
	})
	return out
}

package config

import (
	"fmt"
	"time"
)

// Brake defines which withdrawals count as a mistake. An exporter that suddenly exports almost nothing, because of lost
// rights or a mistyped selector, must not stop working traffic.
type Brake struct {
	// Percent of a remote's objects of one kind. The broker retains the objects if the remote withdraws more than this.
	// 100 switches the brake off.
	Percent int `json:"percent"`
	// AtLeast is the smallest number of withdrawn objects that the brake applies to.
	AtLeast int `json:"atLeast"`
	// Hold is how long objects are retained, until another snapshot that lacks them confirms the withdrawal.
	Hold Duration `json:"hold"`
}

func defaultBrake() Brake {
	return Brake{Percent: 50, AtLeast: 20, Hold: Duration{Duration: time.Hour}}
}

func (b *Brake) complete(p *problems, field string) {
	if b.Percent < 1 || b.Percent > 100 {
		p.add(field+".percent", "%d: use 1 to 100 percent; 100 switches the brake off", b.Percent)
	}
	if b.AtLeast < 1 {
		p.add(field+".atLeast", "%d: use a number of objects above 0", b.AtLeast)
	}
	b.Hold.check(p, field+".hold", b.Hold.Duration > 0, "a time above 0, such as \"10m\"")
}

// Until says when the broker removes the retained objects of a cluster, for messages to an operator. unexported means
// that the cluster's exporter no longer exports them at all.
func (b Brake) Until(cluster string, unexported bool) string {
	if unexported {
		return fmt.Sprintf("until `semaphorectl release %s` (its exporter no longer exports this kind)", cluster)
	}
	return fmt.Sprintf("until a snapshot after %s lacks them too, or until `semaphorectl release %s`", b.Hold,
		cluster)
}

// Brakes reports whether the withdrawal of some of all objects is retained.
func (b Brake) Brakes(withdrawn, all int) bool {
	return b.Percent < 100 && withdrawn >= b.AtLeast && withdrawn*100 > b.Percent*all
}

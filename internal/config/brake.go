package config

import "time"

// Brake says when a withdrawal is taken for a mistake: an exporter that suddenly exports (almost) nothing, because of
// lost rights or a mistyped selector, must not take working traffic down.
type Brake struct {
	// Percent of what a remote exports of a kind: more than this withdrawn at once is held back. 100 switches the
	// brake off.
	Percent int `json:"percent"`
	// AtLeast so many objects; fewer are never held back.
	AtLeast int `json:"atLeast"`
	// Hold is how long, until another whole snapshot that still lacks the objects lets them go.
	Hold Duration `json:"hold"`
}

func (b *Brake) complete(p *problems, field string) {
	if b.Percent == 0 {
		b.Percent = 50
	}
	if b.AtLeast == 0 {
		b.AtLeast = 20
	}
	b.Hold.check(p, field+".hold")
	if b.Hold.Duration == 0 {
		b.Hold.Duration = 10 * time.Minute
	}
	if b.Percent < 1 || b.Percent > 100 {
		p.add(field+".percent", "%d: use 1 to 100 percent; 100 switches the brake off", b.Percent)
	}
	if b.AtLeast < 1 {
		p.add(field+".atLeast", "%d: use a number of objects above 0", b.AtLeast)
	}
	if b.Hold.Duration < 0 {
		p.add(field+".hold", "%s: use a time above 0, such as \"10m\"", b.Hold)
	}
}

// Brakes says whether withdrawing so many of all objects is held back.
func (b Brake) Brakes(withdrawn, all int) bool {
	return b.Percent < 100 && withdrawn >= b.AtLeast && withdrawn*100 > b.Percent*all
}

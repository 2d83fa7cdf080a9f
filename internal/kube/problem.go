package kube

import (
	"log/slog"
	"sync"
)

// Problem is the reason why something at the apiserver cannot be read or written now. It is logged when it begins or
// changes, not at each attempt.
type Problem struct {
	log *slog.Logger

	mu   sync.Mutex
	text string
}

func NewProblem(log *slog.Logger) *Problem { return &Problem{log: log} }

// Set sets the problem's text; an empty one ends it.
func (p *Problem) Set(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if text != "" && text != p.text {
		p.log.Warn(text)
	}
	p.text = text
}

func (p *Problem) Text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text
}

func (p *Problem) Lines() []string {
	if text := p.Text(); text != "" {
		return []string{text}
	}
	return nil
}

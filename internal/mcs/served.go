package mcs

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// trusted is how long an answer about the definitions counts for reads and writes of single objects. A later
	// request is refused by the apiserver: a definition that is being deleted accepts no new objects.
	trusted = 10 * time.Second
	// untrusted is how long the answer counts that the API is not served: as long as readers wait before they retry.
	untrusted = time.Second
)

// served remembers the version in which the cluster serves the API.
type served struct {
	now func() time.Time

	asking sync.Mutex // held while recent asks, so that all who wait have the answer of one question

	mu      sync.Mutex
	version string
	err     error // an ErrNotServed
	until   time.Time
	// questions counts the requests that were begun.
	questions uint64
	answered  uint64
}

func (s *served) ask(ctx context.Context, ask func(context.Context) (string, error)) (string, error) {
	s.mu.Lock()
	s.questions++
	question, began := s.questions, s.now()
	s.mu.Unlock()
	version, err := ask(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case question < s.answered: // a later question was answered already
	case err == nil:
		s.version, s.err, s.until, s.answered = version, nil, began.Add(trusted), question
	case errors.Is(err, ErrNotServed):
		s.version, s.err, s.until, s.answered = "", err, began.Add(untrusted), question
	default: // nothing is known
		s.until = time.Time{}
	}
	return version, err
}

// recent returns the remembered answer, or a new one if that is too old.
func (s *served) recent(ctx context.Context, ask func(context.Context) (string, error)) (string, error) {
	if known, version, err := s.remembered(); known {
		return version, err
	}
	s.asking.Lock()
	defer s.asking.Unlock()
	if known, version, err := s.remembered(); known {
		return version, err
	}
	return s.ask(ctx, ask)
}

func (s *served) remembered() (known bool, version string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now().Before(s.until), s.version, s.err
}

// forget makes the next request ask again, if the answer is still this version.
func (s *served) forget(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version == version {
		s.until = time.Time{}
	}
}

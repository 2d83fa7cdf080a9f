package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// AnswerWithin bounds the time in which an apiserver begins its answer to a read.
const AnswerWithin = 15 * time.Second

type SilentError struct{ After time.Duration }

func (e *SilentError) Error() string {
	return fmt.Sprintf("the apiserver did not answer within %s", e.After.Round(100*time.Millisecond))
}

// Timeout marks a timeout, as in package net.
func (e *SilentError) Timeout() bool { return true }

// Unwrap makes it an error of package context, too.
func (e *SilentError) Unwrap() error { return context.DeadlineExceeded }

// Silent reports whether an error is that an apiserver did not answer.
func Silent(err error) bool {
	_, is := errors.AsType[*SilentError](err)
	return is
}

// Plain returns an error of a request to an apiserver, without the URL if the apiserver did not answer: it did not
// matter.
func Plain(err error) error {
	if silent, is := errors.AsType[*SilentError](err); is {
		return silent
	}
	return err
}

// prompt is a transport to an apiserver that ends a read to which no answer begins in time. The body of an answer, such
// as a log, may take longer.
type prompt struct {
	http.RoundTripper
	within time.Duration
}

func (p prompt) RoundTrip(r *http.Request) (*http.Response, error) {
	began := time.Now()
	ctx, cancel := context.WithCancel(r.Context())
	late := func() bool { return false }
	if r.Method == http.MethodGet {
		timer := time.AfterFunc(p.within, cancel)
		late = func() bool { return !timer.Stop() }
	}
	answer, err := p.RoundTripper.RoundTrip(r.WithContext(ctx))
	isLate := late()
	if err != nil {
		cancel()
		var timeout net.Error
		if isLate || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
			err = &SilentError{time.Since(began)}
		}
		return nil, err
	}
	context.AfterFunc(r.Context(), cancel) // the body is read after this
	return answer, nil
}

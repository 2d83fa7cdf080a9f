package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// elsewhere is the advice after an error for something that was not found here.
const elsewhere = ": give --context, or run this in the pod of the leading broker, or give --address"

// All does something with each of several clusters, parts or dialers at the same time, so that one that does not answer
// delays no other. Each one's answer and error have its index.
func All[In, Out any](of []In, do func(In) (Out, error)) ([]Out, []error) {
	out, failed := make([]Out, len(of)), make([]error, len(of))
	var doing sync.WaitGroup
	for i, one := range of {
		doing.Go(func() { out[i], failed[i] = do(one) })
	}
	doing.Wait()
	return out, failed
}

// AllOf is All for what has to be done with each of them. It fails with all errors.
func AllOf[In, Out any](of []In, do func(In) (Out, error)) ([]Out, error) {
	out, failed := All(of, do)
	return out, errors.Join(failed...)
}

// Status asks a part for its status, and closes the connection. It fails with the message of the part if that does not
// answer within timeout.
func (p *Part) Status(ctx context.Context, timeout time.Duration) (*semaphorev1.GetStatusResponse, error) {
	defer p.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, err := p.GetStatus(ctx, &semaphorev1.GetStatusRequest{})
	if err != nil {
		return nil, errors.New(grpcstatus.Convert(err).Message())
	}
	return s, nil
}

// Control returns the ControlService of the part; an exporter has none.
func (p *Part) Control() semaphorev1.ControlServiceClient {
	return semaphorev1.NewControlServiceClient(p.conn)
}

// Each calls call for each part, closes the connections, and returns how many parts support the call: a part does not
// if call returns the code Unimplemented. It fails with the errors of all others. Each part has the time of timeout,
// however long another one took.
func Each(ctx context.Context, timeout time.Duration, parts []*Part,
	call func(context.Context, *Part) error) (asked int, err error) {
	var failed []error
	for _, p := range parts {
		calling, cancel := context.WithTimeout(ctx, timeout)
		err := call(calling, p)
		cancel()
		p.Close()
		if grpcstatus.Code(err) == codes.Unimplemented {
			continue
		}
		asked++
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %s", p.Where, show.Printable(grpcstatus.Convert(err).Message())))
		}
	}
	return asked, joinLines(failed)
}

// Brokers calls call for each broker that supports it. It fails if none does, for another part, and with the errors of
// call. does and which, such as "drains" and "a broker", are words of these errors.
func (t *Target) Brokers(ctx context.Context, timeout time.Duration, does, which string,
	call func(context.Context, *Part) error) error {
	if t.Part != "" && t.Part != Broker {
		return fmt.Errorf("--part %q: only a broker %s", t.Part, does)
	}
	parts, unreached := t.Dial(ctx)
	if len(parts) == 0 {
		return unreached
	}
	asked, err := Each(ctx, timeout, parts, call)
	if asked == 0 && unreached == nil {
		return errors.New("none of the parts asked is " + which + elsewhere)
	}
	return joinLines([]error{err, unreached})
}

// OneCluster returns an error if the flags name several clusters, for commands that are about one.
func (a *Access) OneCluster() error {
	if len(a.Contexts) > 1 {
		return errors.New("--context: give one; this command is about one cluster")
	}
	return nil
}

// Leading returns the status of a broker that leads and works. It fails for any other part, with the code Unimplemented
// if it is no broker.
func (p *Part) Leading(ctx context.Context) (*semaphorev1.GetStatusResponse, error) {
	s, err := p.GetStatus(ctx, &semaphorev1.GetStatusRequest{})
	switch {
	case err != nil:
		return nil, err
	case s.GetPart() != Broker:
		return nil, grpcstatus.Error(codes.Unimplemented, "no broker")
	}
	return s, Works(s)
}

// Works returns an error unless an exporter or broker leads and is ready. Until then what its status lacks may exist.
func Works(s *semaphorev1.GetStatusResponse) error {
	switch {
	case s.GetStandby():
		return fmt.Errorf("this %s is a standby: ask the leader", s.GetPart())
	case !s.GetReady():
		var why []string
		for _, f := range s.GetFindings() {
			if slices.Contains(blocks, finding.Code(f.GetCode())) {
				why = append(why, finding.Text(f))
			}
		}
		return fmt.Errorf("this %s does not work yet: %s", s.GetPart(), cmp.Or(strings.Join(why, "; "), "not ready"))
	}
	return nil
}

// blocks are the findings that say why a leader does not work.
var blocks = []finding.Code{finding.NotReady, finding.DrainsFailed, finding.RemotesUnread}

// Broker returns the status of the leading broker among the parts. A part that does not answer matters only if no
// broker leads. It fails if none of them answers, leads and works.
func (t *Target) Broker(ctx context.Context, timeout time.Duration,
	does string) (*semaphorev1.GetStatusResponse, error) {
	if err := t.Access.OneCluster(); err != nil {
		return nil, err
	}
	var found *semaphorev1.GetStatusResponse
	err := t.Brokers(ctx, timeout, does, "a broker", func(ctx context.Context, p *Part) error {
		s, err := p.Leading(ctx)
		if err == nil {
			found = s
		}
		return err
	})
	if found != nil {
		err = nil
	}
	return found, err
}

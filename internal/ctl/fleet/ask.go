package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// elsewhere says where to ask, after what was not found.
const elsewhere = ": run this where the broker that leads runs, or give --address"

// Status asks a part what it knows, and closes the connection.
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

// Control is the ControlService of the part, which an exporter does not have.
func (p *Part) Control() semaphorev1.ControlServiceClient {
	return semaphorev1.NewControlServiceClient(p.conn)
}

// Each calls call for each part, closes the connections, and returns how many parts do what is asked: where call returns the code
// Unimplemented, the part does not.
func Each(ctx context.Context, parts []*Part, call func(context.Context, *Part) error) (asked int, err error) {
	var failed []string
	for _, p := range parts {
		err := call(ctx, p)
		p.Close()
		if grpcstatus.Code(err) == codes.Unimplemented {
			continue
		}
		asked++
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s: %s", p.Where, cli.Printable(grpcstatus.Convert(err).Message())))
		}
	}
	if len(failed) > 0 {
		return asked, errors.New(strings.Join(failed, "; "))
	}
	return asked, nil
}

// Brokers calls call for each part that is a broker with what is asked. does is what only brokers do, for an error, and which
// which of them.
func (t *Target) Brokers(ctx context.Context, timeout time.Duration, does, which string, call func(context.Context, *Part) error) error {
	parts, err := t.dialBrokers(ctx, does)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	asked, err := Each(ctx, parts, call)
	if asked == 0 {
		return errors.New("none of the parts asked is " + which + elsewhere)
	}
	return err
}

func (t *Target) dialBrokers(ctx context.Context, does string) ([]*Part, error) {
	if t.Address != "" && t.Part != "broker" {
		return nil, fmt.Errorf("--part %q: only a broker %s", t.Part, does)
	}
	return t.Dial(ctx)
}

// Broker is the status of the one broker among the parts that leads. A part that cannot be asked matters only where there is none.
func (t *Target) Broker(ctx context.Context, timeout time.Duration, does string) (*semaphorev1.GetStatusResponse, error) {
	parts, err := t.dialBrokers(ctx, does)
	if err != nil {
		return nil, err
	}
	var found *semaphorev1.GetStatusResponse
	for _, p := range parts {
		s, askErr := p.Status(ctx, timeout)
		switch {
		case askErr != nil:
			err = errors.Join(err, fmt.Errorf("%s: %w", p.Where, askErr))
		case s.GetPart() == "broker" && s.GetStandby():
			err = errors.Join(err, fmt.Errorf("%s: this broker is a standby: ask the one that leads", p.Where))
		case s.GetPart() == "broker":
			found = s
		}
	}
	switch {
	case found != nil:
		return found, nil
	case err != nil:
		return nil, err
	}
	return nil, errors.New("none of the parts asked is a broker" + elsewhere)
}

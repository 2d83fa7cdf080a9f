package stream

import (
	"context"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// endedCall is a call that the server has ended while a message is still unread.
type endedCall struct {
	grpc.ClientStream
	buffered []*semaphorev1.AttachResponse
}

var errWhy = errors.New("why the server ended it")

func (c *endedCall) Attach(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[semaphorev1.AttachRequest,
	semaphorev1.AttachResponse], error) {
	return c, nil
}

func (c *endedCall) Send(*semaphorev1.AttachRequest) error { return io.EOF }

func (c *endedCall) Recv() (*semaphorev1.AttachResponse, error) {
	if len(c.buffered) == 0 {
		return nil, errWhy
	}
	m := c.buffered[0]
	c.buffered = c.buffered[1:]
	return m, nil
}

// quiet is a handler that sends only a hello.
type quiet struct{}

func (quiet) Begin() []*semaphorev1.AttachRequest {
	return []*semaphorev1.AttachRequest{Hello("", 0, nil)}
}
func (quiet) Receive(context.Context, *semaphorev1.AttachResponse) error { return nil }
func (quiet) Ended(error)                                                {}

func TestReasonOfAnEndedCall(t *testing.T) {
	call := &endedCall{buffered: []*semaphorev1.AttachResponse{{}, {}}}
	if err := New(&config.Agent{}, quiet{}).one(t.Context(), call); !errors.Is(err, errWhy) {
		t.Errorf("the stream ended with %v; want %v", err, errWhy)
	}
}

func TestOutgoing(t *testing.T) {
	applied := func(revision uint64) *semaphorev1.AttachRequest {
		return &semaphorev1.AttachRequest{
			Message: &semaphorev1.AttachRequest_Applied{Applied: &semaphorev1.Applied{Revision: revision}},
		}
	}
	report := &semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Report{Report: &semaphorev1.AgentReport{}}}
	s := New(&config.Agent{}, quiet{})
	for revision := range uint64(1000) {
		s.Send(applied(revision))
		s.Send(report)
	}
	var got []*semaphorev1.AttachRequest
	for m := s.take(); m != nil; m = s.take() {
		got = append(got, m)
	}
	if len(got) != 2 || got[0] != report || got[1].GetApplied().GetRevision() != 999 {
		t.Errorf("a stream that was slow sends %v; want the report, then the newest revision", got)
	}
	s.Send(report)
	s.drain()
	if m := s.take(); m != nil {
		t.Errorf("%v is left for another stream", m)
	}
}

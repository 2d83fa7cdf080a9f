package replica

import (
	"testing"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func TestAcks(t *testing.T) {
	at := time.Unix(1_000, 0)
	ack := func(revision uint64) *semaphorev1.PublishResponse {
		return &semaphorev1.PublishResponse{
			Message: &semaphorev1.PublishResponse_Ack{Ack: &semaphorev1.Ack{Revision: revision}},
		}
	}
	refusal := &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Refusal{Refusal: &semaphorev1.Refusal{}}}
	// sent is what goes out in short: 0 for a refusal, else the revision of an acknowledgement.
	sent := func(all []*semaphorev1.PublishResponse) []uint64 {
		out := []uint64{}
		for _, m := range all {
			out = append(out, m.GetAck().GetRevision())
		}
		return out
	}
	var acks Acks
	for i, c := range []struct {
		after     time.Duration
		responses []*semaphorev1.PublishResponse
		waiting   bool
		want      []uint64
	}{
		{0, []*semaphorev1.PublishResponse{ack(1)}, false, []uint64{1}},
		{0, []*semaphorev1.PublishResponse{refusal, ack(2)}, true, []uint64{0}},
		{999 * time.Millisecond, []*semaphorev1.PublishResponse{ack(3)}, true, []uint64{}},
		{time.Millisecond, []*semaphorev1.PublishResponse{ack(4)}, true, []uint64{4}}, // a second after the last one
		{0, nil, false, []uint64{}}, // nothing waits
		{0, []*semaphorev1.PublishResponse{ack(5), ack(6)}, true, []uint64{}},
		{0, nil, false, []uint64{6}},
	} {
		at = at.Add(c.after)
		if got := sent(acks.Send(at, c.responses, c.waiting)); len(got) != len(c.want) || len(got) > 0 &&
			got[len(got)-1] != c.want[len(c.want)-1] {
			t.Errorf("step %d: sends %d, and should send %d", i, got, c.want)
		}
	}
	acks.Send(at, []*semaphorev1.PublishResponse{ack(7)}, true)
	if m := acks.Flush(at); m.GetAck().GetRevision() != 7 || acks.Flush(at) != nil {
		t.Errorf("flush sends %v, and then something once more", m)
	}
}

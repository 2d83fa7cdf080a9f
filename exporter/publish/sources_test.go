package publish

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The source revision of a change is never newer than what the broker knows to have been read, also where the stream
// breaks before the next heartbeat: an exporter that has read less then waits.
func TestChangesCarryTheSourceRevision(t *testing.T) {
	j, r := newJournal(10), newReplica()
	read := uint64(40)
	upToNow := func(semaphorev1.Kind) uint64 { return read }
	w := connectFrom(t, source{"uid", upToNow, upToNow}, j, r)
	// next sends all there is and returns the last message.
	next := func() (last *semaphorev1.PublishRequest) {
		t.Helper()
		for {
			m, err := w.sender.Next()
			must(t, err)
			if m == nil {
				return last
			}
			w.say(m)
			w.arrive()
			last = m
		}
	}
	next()
	for i, step := range []struct {
		read    uint64
		sources int
	}{{40, len(kinds)}, {40, 0}, {50, len(kinds)}} {
		read = step.read
		k, o := member("pod", fmt.Sprint("10.1.1.", i))
		put(j, k, o, time.Now())
		if got := next().GetChanges().GetSources(); len(got) != step.sources || step.sources > 0 &&
			got[0].GetSourceRevision() != read {
			t.Errorf("read up to %d, and the changes say %v", read, got)
		}
	}
	// The stream breaks here, and another exporter of the same cluster says hello.
	old := NewSession("c1", "c2", "test", 0, source{"uid", upTo(45), upTo(45)}, kinds, newJournal(10))
	result, err := r.Open().Receive(time.Now(), old.Hello())
	must(t, err)
	var lag *LagError
	if _, err := old.Receive(result.Responses[0]); !errors.As(err, &lag) {
		t.Errorf("one that has read less continues: %v", err)
	}
}

// Slices are sent for their Services' sake: where the Services that were read are old, so are they, whether the broker
// holds slices or not.
func TestSlicesLagWithTheirServices(t *testing.T) {
	both := []semaphorev1.Kind{semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE}
	for _, c := range []struct {
		read   uint64
		behind int
	}{{11, 2}, {29, 0}} {
		s := NewSession("c1", "c2", "test", 0, source{"uid", upTo(c.read), upTo(c.read)}, both, newJournal(10))
		_, err := s.Receive(hi(&semaphorev1.KindState{Kind: semaphorev1.Kind_KIND_SERVICE, SourceId: "uid",
			SourceRevision: 29}))
		var lag *LagError
		if errors.As(err, &lag); lag == nil && c.behind > 0 || lag != nil && len(lag.Behind) != c.behind {
			t.Errorf("read up to %d: %v", c.read, err)
		}
	}
}

// The position that is sent is that of the newest source, and the position that counts for being sent more is that of
// the oldest: an exporter whose Services are read further and whose slices less is behind.
func TestNewestRevisionIsSentOldestIsCompared(t *testing.T) {
	j, r := newJournal(10), newReplica()
	connectFrom(t, source{"uid", upTo(15), upTo(29)}, j, r).drain()
	old := NewSession("c1", "c2", "test", 0, source{"uid", upTo(17), upTo(49)}, kinds, newJournal(10))
	result, err := r.Open().Receive(time.Now(), old.Hello())
	must(t, err)
	var lag *LagError
	if _, err := old.Receive(result.Responses[0]); !errors.As(err, &lag) {
		t.Errorf("one that has read less of something continues: %v", err)
	}
}

// This exporter has read its own messages, although a watch without events may not say so yet.
func TestAnExporterDoesNotLagBehindItself(t *testing.T) {
	j := newJournal(10)
	kind := semaphorev1.Kind_KIND_SET_MEMBER
	welcome := hi(&semaphorev1.KindState{Kind: kind, Digest: make([]byte, 32), SourceId: "source", SourceRevision: 15})
	for sent, lags := range map[uint64]bool{0: true, 14: true, 15: false} {
		s := NewSession("c1", "c2", "test", 0, source{"source", upTo(13), upTo(15)}, kinds, j)
		s.earlierSource = map[semaphorev1.Kind]uint64{kind: sent}
		if _, err := s.Receive(welcome); (err != nil) != lags {
			t.Errorf("having sent up to %d itself: %v", sent, err)
		}
	}
}

// TestAnotherClusterStands: an exporter whose broker knows another cluster by its name says so until it is accepted,
// with the broker's words, which name the command that changes it. TestASecondCluster (broker) has the broker's part.
func TestAnotherClusterStands(t *testing.T) {
	b := newBench(t, "c2")
	p := b.publisher("c2", "", Options{Source: readTo(1)})
	const why = "another cluster stands for c1: kubectl patch remotecluster c1 --type merge"
	p.streamEnded(status.Error(grpccodes.AlreadyExists, why))
	if l := p.Status(); l.GetConnected() || l.GetRefusedSourceId() != readTo(1).ID() ||
		!strings.Contains(l.GetLastError(), why) {
		t.Errorf("the link is %v", l)
	}
	if found := fmt.Sprint(p.Findings()); !strings.Contains(found, string(finding.SourceRefused)) ||
		!strings.Contains(found, why) {
		t.Errorf("it finds %v", found)
	}
	p.streamStarted(NewSession("c1", "c2", "test", 0, source{id: "uid"}, kinds, b.catalog.Journal()))
	if l, found := p.Status(), p.Findings(); !l.GetConnected() || l.GetRefusedSourceId() != "" || len(found) > 0 {
		t.Errorf("once it is accepted: %v, %v", l, found)
	}
}

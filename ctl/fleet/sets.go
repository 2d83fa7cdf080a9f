package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type BrokerSets struct {
	Cluster string
	Sets    []*semaphorev1.PolicySet
	// Links to remotes, to describe a remote without sets.
	Links []*semaphorev1.LinkStatus
	Now   time.Time
}

// AskSets asks the broker among the parts. It fails if no broker with the feature policy answers, leads and works.
func AskSets(ctx context.Context, t *Target, req *semaphorev1.ListSetsRequest,
	timeout time.Duration) (*BrokerSets, error) {
	var found *BrokerSets
	err := t.Brokers(ctx, timeout, "has sets", "a broker with the policy feature",
		func(ctx context.Context, p *Part) error {
			sets, err := ReceiveSets(ctx, p, req)
			if err != nil {
				return err
			}
			s, err := p.Leading(ctx)
			if err != nil {
				return err
			}
			found = &BrokerSets{Cluster: s.GetCluster(), Sets: sets, Links: s.GetLinks(), Now: s.GetNow().AsTime()}
			return nil
		})
	return found, err
}

// ReceiveSets joins the sets of several messages. It fails if the broker does not send all.
func ReceiveSets(ctx context.Context, p *Part,
	req *semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
	stream, err := p.ListSets(ctx, req)
	if err != nil {
		return nil, err
	}
	var out []*semaphorev1.PolicySet
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		for _, s := range m.GetSets() {
			if n := len(out); n > 0 && show.SetName(out[n-1]) == show.SetName(s) {
				out[n-1].Pods = append(out[n-1].Pods, s.GetPods()...)
				continue
			}
			out = append(out, s)
		}
	}
}

// SetsDocument is the format of brokerSets for programs, and for `semaphorectl explain --sets`.
type SetsDocument struct {
	Cluster string            `json:"cluster"`
	Now     time.Time         `json:"now"`
	Sets    []json.RawMessage `json:"sets"`
	Links   []json.RawMessage `json:"links"`
}

// ReadSets reads a document of printSetsAs. It fails for any other document.
func ReadSets(data []byte) (*BrokerSets, error) {
	var doc SetsDocument
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	if doc.Cluster == "" {
		return nil, errors.New("it is not what `semaphorectl get sets -o json` prints: no cluster in it")
	}
	out := &BrokerSets{Cluster: doc.Cluster, Now: doc.Now}
	lenient := protojson.UnmarshalOptions{DiscardUnknown: true} // of another version
	for i, data := range doc.Sets {
		s := &semaphorev1.PolicySet{}
		if err := lenient.Unmarshal(data, s); err != nil {
			return nil, fmt.Errorf("sets[%d]: %w", i, err)
		}
		out.Sets = append(out.Sets, s)
	}
	for i, data := range doc.Links {
		l := &semaphorev1.LinkStatus{}
		if err := lenient.Unmarshal(data, l); err != nil {
			return nil, fmt.Errorf("links[%d]: %w", i, err)
		}
		out.Links = append(out.Links, l)
	}
	return out, nil
}

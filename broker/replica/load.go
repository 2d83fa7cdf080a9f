package replica

import (
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Exported counts the accepted objects that have an effect, by kind, as the brake does. Like Load it is for previews.
func Exported(results []Result) map[semaphorev1.Kind]int {
	counts := map[semaphorev1.Kind]int{}
	for _, r := range results {
		for _, c := range r.Changes {
			if c.New != nil && !isEmpty(c.New) {
				counts[c.Key.Kind]++
			}
		}
	}
	return counts
}

// Load applies objects to an empty replica as one complete snapshot, with the same messages as a stream, and returns
// the accepted ones. It is for previews, which have no stream.
func (r *Replica) Load(objects []*semaphorev1.Object, now time.Time) ([]Result, error) {
	s := r.Open()
	defer s.Close()
	revision := uint64(len(objects)) + 1
	hello := &semaphorev1.Hello{Cluster: r.cluster, ProtocolVersion: 1, MinProtocolVersion: 1, Epoch: "preview",
		HeadRevision: revision, Kinds: semaphorev1.Kinds}
	if _, err := s.Receive(now, &semaphorev1.PublishRequest{
		Message: &semaphorev1.PublishRequest_Hello{Hello: hello}}); err != nil {
		return nil, err
	}
	var all []Result
	for _, kind := range semaphorev1.Kinds {
		var changes []*semaphorev1.Change
		for _, o := range objects {
			if o.GetKey().GetKind() == kind {
				changes = append(changes, &semaphorev1.Change{Revision: uint64(len(changes)) + 1,
					Change: &semaphorev1.Change_Upsert{Upsert: o}})
			}
		}
		for _, m := range []*semaphorev1.PublishRequest{
			{Message: &semaphorev1.PublishRequest_SnapshotBegin{SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: kind,
				Revision: revision}}},
			{Message: &semaphorev1.PublishRequest_Changes{Changes: &semaphorev1.Changes{Changes: changes}}},
			{Message: &semaphorev1.PublishRequest_SnapshotEnd{SnapshotEnd: &semaphorev1.SnapshotEnd{Kind: kind,
				Revision: revision, Objects: uint64(len(changes))}}},
		} {
			result, err := s.Receive(now, m)
			if err != nil {
				return nil, err
			}
			if len(result.Changes) > 0 || result.Completed != 0 {
				all = append(all, result)
			}
		}
	}
	return all, nil
}

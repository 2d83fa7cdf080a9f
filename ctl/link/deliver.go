package link

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/certs"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/bounds"
)

// boundsWithin is how long link waits for an exporter to write changed bounds. It takes about a second.
const boundsWithin = 20 * time.Second

// desired are the pod subnets that agents are to accept of remotes, by name; none for a remote that is gone.
type desired map[string][]netip.Prefix

// bound are those of several clusters.
type bound map[*apply.Applier]desired

func (b bound) add(a *apply.Applier, remote string, pods []netip.Prefix) {
	if b[a] == nil {
		b[a] = desired{}
	}
	b[a][remote] = pods
}

// lacks returns the remotes that are not in a RemotesFile as desired.
func (d desired) lacks(file string) (names []string) {
	has := map[string]string{}
	for _, r := range bounds.ReadRemotes([]byte(file)) {
		slices.Sort(r.PodSubnets)
		has[r.Name] = strings.Join(r.PodSubnets, " ")
	}
	for name, pods := range d {
		texts := show.Texts(pods)
		slices.Sort(texts)
		if has[name] != strings.Join(texts, " ") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// deliver has the agents of clusters accept changes at once: it waits until the exporter has written them to the
// ConfigMap of their bounds, and then has kubelets update the volumes, also those of brokers, which read the keys for
// admission policies. Without this they do so within two minutes, so a failure is said, and is none of the command.
func deliver(ctx context.Context, all bound) {
	clusters := slices.Collect(maps.Keys(all))
	_, failed := fleet.All(clusters, func(a *apply.Applier) (any, error) { return nil, deliverOne(ctx, a, all[a]) })
	for i, err := range failed {
		if err != nil {
			clusters[i].Say("agents accept the change when their kubelets next look, within two minutes by default: %s",
				strings.TrimPrefix(err.Error(), clusters[i].Cluster.Context+": "))
		}
	}
}

func deliverOne(ctx context.Context, a *apply.Applier, d desired) error {
	agents, err := a.Cluster.PodObjects(ctx, fleet.Agent, "")
	if err != nil {
		return err
	}
	if len(agents) == 0 {
		return a.Refresh(ctx, fleet.Broker)
	}
	waiting, cancel := context.WithTimeout(ctx, boundsWithin)
	defer cancel()
	if err := a.Until(waiting, "the bounds of agents", func() (string, error) {
		m, err := a.Cluster.Objects.ConfigMap(waiting, a.Cluster.Namespace, bounds.RemotesIn)
		if err != nil {
			return "", err
		}
		if names := d.lacks(m[bounds.RemotesFile]); len(names) > 0 {
			return fmt.Sprintf("the exporter has not written %s to the ConfigMap %s yet", strings.Join(names, ", "),
				bounds.RemotesIn), nil
		}
		return "", nil
	}); err != nil {
		return err
	}
	return a.Refresh(ctx, fleet.Agent, fleet.Broker)
}

// given returns the bounds that agents of each cluster are to accept after the introductions.
func given(gets []*certs.Introduction) bound {
	out := bound{}
	for _, x := range gets {
		out.add(x.Here.Applier, x.Name, x.Pods)
	}
	return out
}

// withdrawn returns the bounds that agents of each cluster are no longer to accept, where its RemoteCluster was
// deleted.
func withdrawn(all []*share) bound {
	out := bound{}
	for _, s := range all {
		if s.remote != nil {
			out.add(s.Applier, s.of, nil)
		}
	}
	return out
}

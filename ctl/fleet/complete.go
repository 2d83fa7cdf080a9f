package fleet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func CompleteContexts(access *Access) show.Names {
	return func(context.Context, string) []string {
		all, _ := access.Names() // no kubeconfig, no names
		return slices.DeleteFunc(all, func(name string) bool { return slices.Contains(access.Contexts, name) })
	}
}

// fromBrokers returns names from the leading brokers among the parts, as far as these answer.
func fromBrokers(ctx context.Context, t *Target,
	of func(context.Context, *Part, *semaphorev1.GetStatusResponse) []string) []string {
	dialers, err := t.Dialers()
	if err != nil {
		return nil
	}
	found, _ := All(dialers, func(dial Dialer) ([]string, error) {
		p, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		defer p.Close()
		s, err := p.GetStatus(ctx, &semaphorev1.GetStatusRequest{})
		if err != nil || s.GetPart() != Broker || s.GetStandby() {
			return nil, err
		}
		return of(ctx, p, s), nil
	})
	return once(found)
}

func CompleteStatus(t *Target, of func(*semaphorev1.GetStatusResponse) []string) show.Names {
	return func(ctx context.Context, _ string) []string {
		return fromBrokers(ctx, t, func(_ context.Context, _ *Part, s *semaphorev1.GetStatusResponse) []string {
			return of(s)
		})
	}
}

// CompleteNodes returns the nodes that can be drained, as CLUSTER/NODE; clusters first.
func CompleteNodes(t *Target) show.Names {
	return func(ctx context.Context, typed string) []string {
		cluster, name, given := strings.Cut(typed, "/")
		return fromBrokers(ctx, t, func(ctx context.Context, p *Part,
			s *semaphorev1.GetStatusResponse) (out []string) {
			switch {
			case !given:
				return around("", append(LinkedOf(s), s.GetCluster()), "/")
			case cluster == s.GetCluster():
				return around(cluster+"/", NodesOf(s), "")
			}
			of := &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_NODE, Name: name}
			nodes, _, _ := Accepted(ctx, p, cluster, of)
			return around(cluster+"/", nodes, "")
		})
	}
}

// CompleteServices returns the Services that can be drained: NAMESPACE/NAME, and CLUSTER:NAMESPACE/NAME once CLUSTER:
// has been typed.
func CompleteServices(t *Target) show.Names {
	return func(ctx context.Context, typed string) []string {
		cluster, service, given := strings.Cut(typed, ":")
		prefix := cluster + ":"
		if !given {
			service, prefix = typed, ""
		}
		of := &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SERVICE}
		if namespace, name, ok := strings.Cut(service, "/"); ok {
			of.Namespace, of.Name = namespace, name
		}
		return fromBrokers(ctx, t, func(ctx context.Context, p *Part,
			s *semaphorev1.GetStatusResponse) (out []string) {
			clusters := []string{cluster}
			if !given {
				clusters = LinkedOf(s)
				out = around("", clusters, ":")
			}
			for _, c := range clusters {
				names, _, _ := Accepted(ctx, p, c, of)
				out = append(out, around(prefix, names, "")...)
			}
			return out
		})
	}
}

// Accepted returns the names of a cluster's objects at a broker: those like an object. more is how many others there
// are. It fails if the broker does not answer.
func Accepted(ctx context.Context, p *Part, cluster string, like *semaphorev1.ObjectKey) (out []string, more int,
	err error) {
	answer, err := p.Locate(ctx, &semaphorev1.LocateRequest{Object: like, Cluster: cluster})
	if err != nil {
		return nil, 0, err
	}
	for _, place := range answer.GetPlaces() {
		_, name, named := strings.Cut(place.GetObject(), " ")
		if named && place.GetHop() == debug.HopAccept && place.GetCluster() == cluster &&
			place.GetState() == debug.PlaceDone {
			out = append(out, name)
		}
	}
	return out, int(answer.GetMore()), nil
}

// LinkedOf returns the clusters that the broker has links to, without its own.
func LinkedOf(s *semaphorev1.GetStatusResponse) (out []string) {
	for _, l := range s.GetLinks() {
		if l.GetCluster() != s.GetCluster() {
			out = append(out, l.GetCluster())
		}
	}
	return out
}

// BrakedOf returns the clusters whose objects the broker retains.
func BrakedOf(s *semaphorev1.GetStatusResponse) (out []string) {
	for _, l := range s.GetLinks() {
		for _, k := range l.GetKinds() {
			if k.GetRetained() > 0 {
				out = append(out, l.GetCluster())
			}
		}
	}
	return out
}

func NodesOf(s *semaphorev1.GetStatusResponse) (out []string) {
	for _, n := range s.GetNodes() {
		out = append(out, n.GetNode())
	}
	return out
}

// DrainedOf returns the drained targets of a kind, as undrain takes them.
func DrainedOf(kind string) func(*semaphorev1.GetStatusResponse) []string {
	return func(s *semaphorev1.GetStatusResponse) (out []string) {
		for _, d := range s.GetDrains() {
			if name, ok := strings.CutPrefix(show.TargetName(d.GetTarget()), kind+" "); ok {
				out = append(out, name)
			}
		}
		return out
	}
}

// CompleteSets returns those of the broker, or their pods, as CLUSTER/NAMESPACE/NAME.
func CompleteSets(t *Target, pods bool) show.Names {
	return func(ctx context.Context, typed string) (out []string) {
		// The cluster narrows the request: there may be 100,000 pods.
		cluster, _, given := strings.Cut(typed, "/")
		req := &semaphorev1.ListSetsRequest{}
		if given {
			req.Cluster = cluster
		}
		found, err := AskSets(ctx, t, req, show.CompleteAskWithin)
		if err != nil {
			return nil
		}
		for _, s := range found.Sets {
			if !pods {
				out = append(out, show.SetName(s))
				continue
			}
			for _, p := range s.GetPods() {
				out = append(out, s.GetCluster()+"/"+s.GetNamespace()+"/"+p.GetName())
			}
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
}

var traced = map[string]schema.GroupVersionResource{
	"service":       ServicesGVR,
	"endpointslice": SlicesGVR,
	"setmember":     PodsGVR,
	"node":          NodesGVR,
}

// CompleteTraced returns those of the clusters, as objectForms says; kinds and namespaces first.
func CompleteTraced(access *Access) show.Names {
	return func(ctx context.Context, typed string) []string {
		kind, rest, given := strings.Cut(typed, "/")
		of, known := traced[kind]
		switch {
		case !given:
			return around("", slices.Sorted(maps.Keys(traced)), "/")
		case kind == "node":
			return around("node/", listed(ctx, access, "", of), "")
		case known:
			return around(kind+"/", inNamespaces(ctx, access, rest, of), "")
		}
		return nil
	}
}

// CompleteNamespaced returns objects of the clusters as NAMESPACE/NAME.
func CompleteNamespaced(access *Access, of ...schema.GroupVersionResource) show.Names {
	return func(ctx context.Context, typed string) []string { return inNamespaces(ctx, access, typed, of...) }
}

func CompleteRemotes(access *Access) show.Names {
	return func(ctx context.Context, _ string) []string { return listed(ctx, access, "", v1alpha1.RemoteClusters) }
}

// inNamespaces returns the objects of the namespace that has been typed, and before that the namespaces, as they are
// fewer.
func inNamespaces(ctx context.Context, access *Access, typed string,
	of ...schema.GroupVersionResource) []string {
	namespace, _, given := strings.Cut(typed, "/")
	if !given {
		return around("", listed(ctx, access, "", NamespacesGVR), "/")
	}
	return around(namespace+"/", listed(ctx, access, namespace, of...), "")
}

// listed returns the names of objects in all clusters of the flags, as far as these answer.
func listed(ctx context.Context, access *Access, namespace string,
	resources ...schema.GroupVersionResource) []string {
	clusters, err := access.Clusters()
	if err != nil {
		return nil
	}
	found, _ := All(clusters, func(c *Cluster) ([]string, error) {
		client, err := metadata.NewForConfig(c.Config)
		if err != nil {
			return nil, err
		}
		names, failed := All(resources, func(of schema.GroupVersionResource) (out []string, err error) {
			list, err := client.Resource(of).Namespace(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			for i := range list.Items {
				out = append(out, list.Items[i].Name)
			}
			return out, nil
		})
		return slices.Concat(names...), errors.Join(failed...)
	})
	return once(found)
}

// around returns names with a text before and after each.
func around(before string, names []string, after string) (out []string) {
	for _, name := range names {
		out = append(out, before+name+after)
	}
	return out
}

// once returns all names of several lists, each once.
func once(all [][]string) []string {
	out := slices.Concat(all...)
	slices.Sort(out)
	return slices.Compact(out)
}

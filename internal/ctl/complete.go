package ctl

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Bounds of the time of a completion, and of a request for it: a cluster that does not answer keeps no names of the
// others from the shell.
const (
	completeWithin    = 2 * time.Second
	completeAskWithin = completeWithin * 3 / 4
)

// names returns the completions of an argument or a flag, for what has been typed. Errors give no names, because a
// completion cannot print them.
type names func(ctx context.Context, typed string) []string

// completeFlag panics only for a flag that the command does not have.
func completeFlag(cmd *cobra.Command, flag string, of names) {
	if err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		return offer(cmd, of, typed)
	}); err != nil {
		panic(err)
	}
}

// completeArg completes the one argument of a command.
func completeArg(cmd *cobra.Command, of names) { completeArgs(cmd, 1, of) }

// completeArgs completes the first arguments of a command, all with the same names, and returns the command.
func completeArgs(cmd *cobra.Command, most int, of names) *cobra.Command {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offer(cmd, of, typed)
	}
	return cmd
}

// offer returns names in time, or none, and makes the shell add no space after an incomplete one.
func offer(cmd *cobra.Command, of names, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	parsedOnce(cmd)
	ctx := cmd.Context()
	if ctx == nil { // cobra has none while it completes flags
		ctx = context.Background()
	}
	found := slices.DeleteFunc(inTime(ctx, of, typed), func(name string) bool {
		return name == "" || !strings.HasPrefix(name, typed) || strings.ContainsFunc(name, foreign)
	})
	if slices.ContainsFunc(found, func(name string) bool { return strings.ContainsAny(name[len(name)-1:], "/:") }) {
		return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// parsedOnce removes the second of each value of a repeated flag: before a completion, cobra parses all flags twice.
func parsedOnce(cmd *cobra.Command) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if values, ok := f.Value.(pflag.SliceValue); ok {
			var once []string
			for _, value := range values.GetSlice() {
				if !slices.Contains(once, value) {
					once = append(once, value)
				}
			}
			_ = values.Replace(once) // they were parsed before
		}
	})
}

// inTime bounds what no context ends, too, such as a program that a kubeconfig runs for credentials.
func inTime(ctx context.Context, of names, typed string) []string {
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	found := make(chan []string, 1)
	go func() {
		asking, cancel := context.WithTimeout(ctx, completeAskWithin)
		defer cancel()
		found <- of(asking, typed)
	}()
	select {
	case all := <-found:
		return all
	case <-ctx.Done():
		return nil
	}
}

// foreign reports whether a shell could take a character for more than a part of a name: shells insert what they are
// offered into the command line as it is. No name of an object has such a character, whatever another cluster sends.
func foreign(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._:/@+=", r)
}

// oneOf returns fixed names.
func oneOf(all ...string) names {
	return func(context.Context, string) []string { return slices.Clone(all) }
}

// contexts completes the contexts of the kubeconfig.
func contexts(access *fleet.Access) names {
	return func(context.Context, string) []string {
		all, _ := access.Names() // no kubeconfig, no names
		return slices.DeleteFunc(all, func(name string) bool { return slices.Contains(access.Contexts, name) })
	}
}

// fromBrokers returns names from the leading brokers among the parts, as far as these answer.
func fromBrokers(ctx context.Context, t *fleet.Target,
	of func(context.Context, *fleet.Part, *semaphorev1.GetStatusResponse) []string) (out []string) {
	dialers, err := t.Dialers()
	if err != nil {
		return nil
	}
	var mu sync.Mutex // of out
	var asking sync.WaitGroup
	for _, dial := range dialers {
		asking.Go(func() {
			p, err := dial(ctx)
			if err != nil {
				return
			}
			defer p.Close()
			s, err := p.GetStatus(ctx, &semaphorev1.GetStatusRequest{})
			if err != nil || s.GetPart() != fleet.Broker || s.GetStandby() {
				return
			}
			found := of(ctx, p, s)
			mu.Lock()
			defer mu.Unlock()
			out = append(out, found...)
		})
	}
	asking.Wait()
	slices.Sort(out)
	return slices.Compact(out)
}

// ofStatus completes names from the status of the leading broker.
func ofStatus(t *fleet.Target, of func(*semaphorev1.GetStatusResponse) []string) names {
	return func(ctx context.Context, _ string) []string {
		return fromBrokers(ctx, t, func(_ context.Context, _ *fleet.Part, s *semaphorev1.GetStatusResponse) []string {
			return of(s)
		})
	}
}

// drainableNodes returns the nodes that can be drained, as CLUSTER/NODE; clusters first.
func drainableNodes(t *fleet.Target) names {
	return func(ctx context.Context, typed string) []string {
		cluster, name, given := strings.Cut(typed, "/")
		return fromBrokers(ctx, t, func(ctx context.Context, p *fleet.Part,
			s *semaphorev1.GetStatusResponse) (out []string) {
			switch {
			case !given:
				for _, c := range append(clustersLinked(s), s.GetCluster()) {
					out = append(out, c+"/")
				}
			case cluster == s.GetCluster():
				for _, node := range nodes(s) {
					out = append(out, cluster+"/"+node)
				}
			default:
				of := &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_NODE, Name: name}
				for _, node := range accepted(ctx, p, cluster, of) {
					out = append(out, cluster+"/"+node)
				}
			}
			return out
		})
	}
}

// drainableServices returns the Services that can be drained: NAMESPACE/NAME, and CLUSTER:NAMESPACE/NAME once CLUSTER:
// has been typed.
func drainableServices(t *fleet.Target) names {
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
		return fromBrokers(ctx, t, func(ctx context.Context, p *fleet.Part,
			s *semaphorev1.GetStatusResponse) (out []string) {
			clusters := []string{cluster}
			if !given {
				clusters = clustersLinked(s)
				for _, c := range clusters {
					out = append(out, c+":")
				}
			}
			for _, c := range clusters {
				for _, name := range accepted(ctx, p, c, of) {
					out = append(out, prefix+name)
				}
			}
			return out
		})
	}
}

// accepted returns the names of a cluster's objects at a broker: those like an object. A broker of an earlier version
// says of that object alone whether it has it.
func accepted(ctx context.Context, p *fleet.Part, cluster string, like *semaphorev1.ObjectKey) (out []string) {
	answer, err := p.Locate(ctx, &semaphorev1.LocateRequest{Object: like, Cluster: cluster})
	if err != nil {
		return nil
	}
	for _, place := range answer.GetPlaces() {
		_, name, named := strings.Cut(place.GetObject(), " ")
		if named && place.GetHop() == debug.HopAccept && place.GetCluster() == cluster &&
			place.GetState() == debug.PlaceDone {
			out = append(out, name)
		}
	}
	return out
}

// clustersLinked returns the clusters that the broker has links to, without its own.
func clustersLinked(s *semaphorev1.GetStatusResponse) (out []string) {
	for _, l := range s.GetLinks() {
		if l.GetCluster() != s.GetCluster() {
			out = append(out, l.GetCluster())
		}
	}
	return out
}

// braked returns the clusters of which the broker retains objects.
func braked(s *semaphorev1.GetStatusResponse) (out []string) {
	for _, l := range s.GetLinks() {
		for _, k := range l.GetKinds() {
			if k.GetHeldBack() > 0 {
				out = append(out, l.GetCluster())
			}
		}
	}
	return out
}

// nodes returns those of the own cluster.
func nodes(s *semaphorev1.GetStatusResponse) (out []string) {
	for _, n := range s.GetNodes() {
		out = append(out, n.GetNode())
	}
	return out
}

// drained returns the drained targets of a kind, as undrain takes them.
func drained(kind string) func(*semaphorev1.GetStatusResponse) []string {
	return func(s *semaphorev1.GetStatusResponse) (out []string) {
		for _, d := range s.GetDrains() {
			if name, ok := strings.CutPrefix(targetName(d.GetTarget()), kind+" "); ok {
				out = append(out, name)
			}
		}
		return out
	}
}

// sets returns those of the broker, or their pods, as CLUSTER/NAMESPACE/NAME.
func sets(t *fleet.Target, pods bool) names {
	return func(ctx context.Context, typed string) (out []string) {
		// The cluster narrows the request: there may be 100,000 pods.
		cluster, _, given := strings.Cut(typed, "/")
		req := &semaphorev1.ListSetsRequest{}
		if given {
			req.Cluster = cluster
		}
		found, err := askSets(ctx, t, req, completeAskWithin)
		if err != nil {
			return nil
		}
		for _, s := range found.Sets {
			if !pods {
				out = append(out, setName(s))
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

// The resources whose objects are completed.
var (
	namespaces = corev1.SchemeGroupVersion.WithResource("namespaces")
	pods       = corev1.SchemeGroupVersion.WithResource("pods")
	services   = corev1.SchemeGroupVersion.WithResource("services")
)

// traced are the resources of the kinds of objects that can be traced.
var traced = map[string]schema.GroupVersionResource{
	"service":       services,
	"endpointslice": {Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	"setmember":     pods,
	"node":          corev1.SchemeGroupVersion.WithResource("nodes"),
}

// tracedObjects returns those of the clusters, as objectForms says; kinds and namespaces first.
func tracedObjects(access *fleet.Access) names {
	return func(ctx context.Context, typed string) (out []string) {
		kind, rest, given := strings.Cut(typed, "/")
		of, known := traced[kind]
		switch {
		case !given:
			for _, name := range slices.Sorted(maps.Keys(traced)) {
				out = append(out, name+"/")
			}
		case kind == "node":
			for _, name := range listed(ctx, access, "", of) {
				out = append(out, "node/"+name)
			}
		case known:
			for _, name := range inNamespaces(ctx, access, rest, of) {
				out = append(out, kind+"/"+name)
			}
		}
		return out
	}
}

// namespaced returns objects of the clusters as NAMESPACE/NAME.
func namespaced(access *fleet.Access, of ...schema.GroupVersionResource) names {
	return func(ctx context.Context, typed string) []string { return inNamespaces(ctx, access, typed, of...) }
}

// remoteNames returns the names of the clusters' RemoteClusters.
func remoteNames(access *fleet.Access) names {
	return func(ctx context.Context, _ string) []string { return listed(ctx, access, "", v1alpha1.RemoteClusters) }
}

// inNamespaces returns the objects of the namespace that has been typed, and before that the namespaces, as they are
// fewer.
func inNamespaces(ctx context.Context, access *fleet.Access, typed string,
	of ...schema.GroupVersionResource) (out []string) {
	namespace, _, given := strings.Cut(typed, "/")
	if !given {
		for _, name := range listed(ctx, access, "", namespaces) {
			out = append(out, name+"/")
		}
		return out
	}
	for _, name := range listed(ctx, access, namespace, of...) {
		out = append(out, namespace+"/"+name)
	}
	return out
}

// listed returns the names of objects in all clusters of the flags, as far as these answer.
func listed(ctx context.Context, access *fleet.Access, namespace string,
	resources ...schema.GroupVersionResource) (out []string) {
	clusters, err := access.Clusters()
	if err != nil {
		return nil
	}
	var mu sync.Mutex // of out
	var listing sync.WaitGroup
	for _, c := range clusters {
		for _, of := range resources {
			listing.Go(func() {
				client, err := metadata.NewForConfig(c.Config)
				if err != nil {
					return
				}
				found, err := client.Resource(of).Namespace(namespace).List(ctx, metav1.ListOptions{})
				if err != nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for i := range found.Items {
					out = append(out, found.Items[i].Name)
				}
			})
		}
	}
	listing.Wait()
	slices.Sort(out)
	return slices.Compact(out)
}

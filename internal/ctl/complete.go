package ctl

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// completeWithin bounds the time of a completion.
const completeWithin = 3 * time.Second

// names returns the completions of an argument or a flag, for what has been typed. Errors give no names, because a
// completion cannot print them.
type names func(cmd *cobra.Command, typed string) []string

// completeFlag panics only for a flag that the command does not have.
func completeFlag(cmd *cobra.Command, flag string, of names) {
	if err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		found := of(cmd, typed)
		return found, directive(found)
	}); err != nil {
		panic(err)
	}
}

// completeArg completes the one argument of a command.
func completeArg(cmd *cobra.Command, of names) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found := of(cmd, typed)
		return found, directive(found)
	}
}

// directive makes the shell add no space after an incomplete name.
func directive(found []string) cobra.ShellCompDirective {
	if slices.ContainsFunc(found, func(name string) bool { return strings.HasSuffix(name, "/") }) {
		return cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	return cobra.ShellCompDirectiveNoFileComp
}

// oneOf returns fixed names.
func oneOf(all ...string) names { return func(*cobra.Command, string) []string { return all } }

// contexts completes the contexts of the kubeconfig.
func contexts(access *fleet.Access) names {
	return func(*cobra.Command, string) []string {
		all, _ := access.Names() // no kubeconfig, no names
		return slices.DeleteFunc(all, func(name string) bool { return slices.Contains(access.Contexts, name) })
	}
}

// ofStatus completes names from the status of the leading broker.
func ofStatus(t *fleet.Target, of func(*semaphorev1.GetStatusResponse) []string) names {
	return func(cmd *cobra.Command, _ string) []string {
		ctx, cancel := context.WithTimeout(commandContext(cmd), completeWithin)
		defer cancel()
		s, err := t.Broker(ctx, completeWithin, "answers")
		if err != nil {
			return nil
		}
		all := of(s)
		slices.Sort(all)
		return slices.Compact(all)
	}
}

// commandContext returns the command's context; cobra has none while it completes flags.
func commandContext(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
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
	return func(cmd *cobra.Command, typed string) (out []string) {
		// The cluster narrows the request: there may be 100,000 pods.
		cluster, _, given := strings.Cut(typed, "/")
		req := &semaphorev1.ListSetsRequest{}
		if given {
			req.Cluster = cluster
		}
		ctx, cancel := context.WithTimeout(commandContext(cmd), completeWithin)
		defer cancel()
		found, err := askSets(ctx, t, req, completeWithin)
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

// localPods returns those of the cluster, as NAMESPACE/POD; namespaces first, because there are fewer.
func localPods(access *fleet.Access) names {
	return func(cmd *cobra.Command, typed string) (out []string) {
		cluster, err := access.Cluster()
		if err != nil {
			return nil
		}
		client, err := dynamic.NewForConfig(cluster.Config)
		if err != nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(commandContext(cmd), completeWithin)
		defer cancel()
		namespace, _, given := strings.Cut(typed, "/")
		resource, prefix := corev1.SchemeGroupVersion.WithResource("namespaces"), ""
		list := client.Resource(resource).List
		if given {
			list, prefix = client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(namespace).List,
				namespace+"/"
		}
		found, err := list(ctx, metav1.ListOptions{})
		if err != nil {
			return nil
		}
		for i := range found.Items {
			name := prefix + found.Items[i].GetName()
			if !given {
				name += "/"
			}
			out = append(out, name)
		}
		return out
	}
}

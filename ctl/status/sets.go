package status

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func setsCommand(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Parts: []string{fleet.Broker}}
	var req semaphorev1.ListSetsRequest
	var pods bool
	var output *show.Outputs
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "sets [CLUSTER[/NAMESPACE[/NAME]]]",
		Short: "which sets of remote pods there are for policies, from which pods, and how old",
		Long: `Prints the sets of remote pods that the broker keeps as network sets for policies to select: of one cluster, of
one namespace there, or a single one. AGE is the time since the remote last sent a message about its pods.

Exit code 0 when all sets are written, 1 when no working broker answers, 2 if a set is pending or failed, or its remote
is disconnected.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				parts := strings.Split(args[0], "/")
				if len(parts) > 3 || slices.Contains(parts, "") {
					return fmt.Errorf("%q: use CLUSTER, CLUSTER/NAMESPACE or CLUSTER/NAMESPACE/NAME", args[0])
				}
				parts = append(parts, "", "")
				req.Cluster, req.Namespace, req.Name = parts[0], parts[1], parts[2]
			}
			if err := access.OneCluster(); err != nil {
				return err
			}
			found, err := fleet.AskSets(cmd.Context(), &t, &req, timeout)
			if err != nil {
				return err
			}
			if err := printSets(cmd.OutOrStdout(), found, output.Chosen, pods || req.Pod != ""); err != nil {
				return err
			}
			var wrong []string
			for _, s := range found.Sets {
				if state := show.SetState(s); state != show.AsDesired {
					wrong = append(wrong, show.SetName(s))
				}
			}
			return show.Wrong(wrong, len(found.Sets), "sets are not as desired")
		},
	}
	t.Flags(cmd)
	f := cmd.Flags()
	f.StringVar(&req.Pod, "pod", "", "only sets with the pod of this name, and their pods")
	f.StringVar(&req.Address, "ip", "", "only sets with this address")
	f.BoolVar(&pods, "pods", false, "also the pods of each set")
	show.CompleteArg(cmd, fleet.CompleteSets(&t, false))
	output = show.OutputFlag(cmd, "table", "json", "yaml")
	show.TimeoutFlag(cmd, &timeout, 10*time.Second)
	return cmd
}

func objectsOf(s *semaphorev1.PolicySet) (out []string) {
	for _, o := range s.GetObjects() {
		name := "GlobalNetworkSet " + o.GetName()
		if o.GetNamespace() != "" {
			name = "NetworkSet " + o.GetNamespace() + "/" + o.GetName()
		}
		out = append(out, name)
	}
	if len(out) == 0 {
		return []string{"-"}
	}
	return out
}

// addresses counts those of the set; an address that is also in a namespace counts once.
func addresses(s *semaphorev1.PolicySet) int {
	global, namespaced := 0, 0
	for _, o := range s.GetObjects() {
		if o.GetNamespace() == "" {
			global += int(o.GetDesired())
		} else {
			namespaced += int(o.GetDesired())
		}
	}
	return max(global, namespaced)
}

func printSets(w io.Writer, found *fleet.BrokerSets, output string, pods bool) error {
	if output != "table" {
		return printSetsAs(w, found, output)
	}
	if len(found.Sets) == 0 {
		_, err := fmt.Fprintf(w, "no such set: a pod of a remote is in one while it has a label\n%s/name and its cluster "+
			"exports it; semaphorectl status shows the remotes\n", naming.DefaultLabelDomain)
		return err
	}
	var wrong []string
	text := show.Tabbed(func(t io.Writer) {
		fmt.Fprintln(t, "SET\tPODS\tADDRESSES\tAGE\tIN\tSTATE")
		for _, s := range found.Sets {
			state := show.SetState(s)
			if state != show.AsDesired {
				wrong = append(wrong, finding.Wrap(show.SetName(s)+": "+state, "  ", show.LineWidth)...)
				state = "see below"
			}
			objects := objectsOf(s)
			fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\n", show.SetName(s), len(s.GetPods()), addresses(s),
				show.Age(found.Now, finding.TimeOf(s.GetLastHeard())), objects[0], state)
			for _, more := range objects[1:] {
				fmt.Fprintf(t, "\t\t\t\t%s\t\n", more)
			}
		}
		if !pods {
			return
		}
		fmt.Fprintln(t, "\nPOD\tADDRESSES\tUID")
		for _, s := range found.Sets {
			for _, p := range s.GetPods() {
				fmt.Fprintf(t, "%s/%s/%s\t%s\t%s\n", s.GetCluster(), s.GetNamespace(), p.GetName(),
					strings.Join(p.GetIps(), " "), p.GetUid())
			}
		}
	})
	if len(wrong) > 0 {
		text += fmt.Sprintf("\n%s\nthe remotes: semaphorectl status\n", strings.Join(wrong, "\n"))
	}
	return show.PrintLines(w, text)
}

func printSetsAs(w io.Writer, found *fleet.BrokerSets, output string) error {
	doc := fleet.SetsDocument{Cluster: found.Cluster, Now: found.Now, Sets: []json.RawMessage{},
		Links: []json.RawMessage{}}
	for _, s := range found.Sets {
		data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(s)
		if err != nil {
			return err
		}
		doc.Sets = append(doc.Sets, data)
	}
	for _, l := range found.Links {
		data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(l)
		if err != nil {
			return err
		}
		doc.Links = append(doc.Links, data)
	}
	return show.PrintValue(w, doc, output)
}

package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func policyCommand(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Parts: []string{fleet.Broker}}
	var req semaphorev1.ListSetsRequest
	var pods bool
	var output *outputs
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "policy [CLUSTER[/NAMESPACE[/NAME]]]",
		Short: "which sets of remote pods there are for policies, from which pods, and how old",
		Long: `Prints the sets of remote pods that the broker keeps as network sets for policies to select: of one cluster, of
one namespace there, or a single one. AGE is the time since the remote last sent a message about its pods.

Exit code 0 when all sets are as they are wanted, 1 when the broker cannot be asked, 2 when one is not: it is
being written, or cannot be, or its remote is away.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.check(); err != nil {
				return err
			}
			if len(args) == 1 {
				parts := strings.Split(args[0], "/")
				if len(parts) > 3 || slices.Contains(parts, "") {
					return fmt.Errorf("%q: use CLUSTER, CLUSTER/NAMESPACE or CLUSTER/NAMESPACE/NAME", args[0])
				}
				parts = append(parts, "", "")
				req.Cluster, req.Namespace, req.Name = parts[0], parts[1], parts[2]
			}
			if err := t.OneCluster(); err != nil {
				return err
			}
			found, err := askSets(cmd.Context(), &t, &req, timeout)
			if err != nil {
				return err
			}
			if err := printSets(cmd.OutOrStdout(), found, output.chosen, pods || req.Pod != ""); err != nil {
				return err
			}
			var wrong []string
			for _, s := range found.Sets {
				if state := setState(s); state != asWanted {
					wrong = append(wrong, cli.Printable(setName(s)))
				}
			}
			if len(wrong) > 0 {
				return program.ExitError{Code: cli.ExitWrong, Err: fmt.Errorf("%d of %d sets are not as wanted: %s",
					len(wrong), len(found.Sets), someOf(wrong))}
			}
			return nil
		},
	}
	t.Flags(cmd)
	f := cmd.Flags()
	f.StringVar(&req.Pod, "pod", "", "only sets with the pod of this name, and their pods")
	f.StringVar(&req.Address, "ip", "", "only sets with this address")
	f.BoolVar(&pods, "pods", false, "also the pods of each set")
	completeArg(cmd, sets(&t, false))
	output = outputFlag(cmd, "table", "json", "yaml")
	f.DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for the answer")
	return cmd
}

// brokerSets is what a broker reports of its sets, and when.
type brokerSets struct {
	Cluster string
	Sets    []*semaphorev1.PolicySet
	// Links to remotes, to describe a remote without sets.
	Links []*semaphorev1.LinkStatus
	Now   time.Time
}

// askSets asks the broker among the parts.
func askSets(ctx context.Context, t *fleet.Target, req *semaphorev1.ListSetsRequest,
	timeout time.Duration) (*brokerSets, error) {
	var found *brokerSets
	err := t.Brokers(ctx, timeout, "has sets", "a broker with the policy feature",
		func(ctx context.Context, p *fleet.Part) error {
			sets, err := receiveSets(ctx, p, req)
			if err != nil {
				return err
			}
			s, err := p.GetStatus(ctx, &semaphorev1.GetStatusRequest{})
			if err != nil {
				return err
			}
			found = &brokerSets{Cluster: s.GetCluster(), Sets: sets, Links: s.GetLinks(), Now: s.GetNow().AsTime()}
			return nil
		})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// receiveSets joins the sets of several messages.
func receiveSets(ctx context.Context, p *fleet.Part,
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
			if n := len(out); n > 0 && setName(out[n-1]) == setName(s) {
				out[n-1].Pods = append(out[n-1].Pods, s.GetPods()...)
				continue
			}
			out = append(out, s)
		}
	}
}

func setName(s *semaphorev1.PolicySet) string {
	return s.GetCluster() + "/" + s.GetNamespace() + "/" + s.GetName()
}

const asWanted = "as wanted"

// setState describes the state of a set besides its numbers.
func setState(s *semaphorev1.PolicySet) string {
	var out []string
	if s.GetProblem() != "" {
		out = append(out, s.GetProblem())
	}
	if n := len(s.GetMissing()); n > 0 {
		out = append(out, fmt.Sprintf("%d not there yet (%s)", n, someOf(s.GetMissing())))
	}
	if n := len(s.GetLeftover()); n > 0 {
		out = append(out, fmt.Sprintf("%d to go (%s)", n, someOf(s.GetLeftover())))
	}
	switch {
	case !s.GetConnected():
		out = append(out, s.GetCluster()+" is not connected; the set stays at its last update")
	case !s.GetComplete():
		out = append(out, s.GetCluster()+" has not sent all its pods yet")
	}
	if len(out) == 0 {
		return asWanted
	}
	return strings.Join(out, "; ")
}

// someOf lists the first few names.
func someOf(all []string) string {
	const few = 3
	if len(all) > few {
		return strings.Join(all[:few], ", ") + ", …"
	}
	return strings.Join(all, ", ")
}

func objectsOf(s *semaphorev1.PolicySet) []string {
	var out []string
	for _, o := range s.GetObjects() {
		out = append(out, objectName(o))
	}
	if len(out) == 0 {
		return []string{"-"}
	}
	return out
}

func objectName(o *semaphorev1.SetObject) string {
	if o.GetNamespace() != "" {
		return "NetworkSet " + o.GetNamespace() + "/" + o.GetName()
	}
	return "GlobalNetworkSet " + o.GetName()
}

// addresses counts those of the set; an address that is also in a namespace counts once.
func addresses(s *semaphorev1.PolicySet) int {
	global, namespaced := 0, 0
	for _, o := range s.GetObjects() {
		if o.GetNamespace() == "" {
			global += int(o.GetWanted())
		} else {
			namespaced += int(o.GetWanted())
		}
	}
	return max(global, namespaced)
}

func setAge(now time.Time, heard *timestamppb.Timestamp) string {
	if heard == nil {
		return "-"
	}
	return short(now.Sub(heard.AsTime()))
}

func printSets(w io.Writer, found *brokerSets, output string, pods bool) error {
	if output != "table" {
		return printSetsAs(w, found, output)
	}
	if len(found.Sets) == 0 {
		_, err := fmt.Fprintf(w, "no such set: a pod of a remote is in one while it has a label\n%s/name and its cluster "+
			"exports "+
			"it; semaphorectl status shows the remotes\n", naming.DefaultLabelDomain)
		return err
	}
	var text strings.Builder
	var wrong []string
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SET\tPODS\tADDRESSES\tAGE\tIN\tSTATE")
	for _, s := range found.Sets {
		state := setState(s)
		if state != asWanted {
			wrong = append(wrong, cli.Wrap(setName(s)+": "+state, "  ", cli.LineWidth)...)
			state = "see below"
		}
		objects := objectsOf(s)
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\n", setName(s), len(s.GetPods()), addresses(s),
			setAge(found.Now, s.GetLastHeard()), objects[0], state)
		for _, more := range objects[1:] {
			fmt.Fprintf(t, "\t\t\t\t%s\t\n", more)
		}
	}
	if pods {
		fmt.Fprintln(t, "\nPOD\tADDRESSES\tUID")
		for _, s := range found.Sets {
			for _, p := range s.GetPods() {
				fmt.Fprintf(t, "%s/%s/%s\t%s\t%s\n", s.GetCluster(), s.GetNamespace(), p.GetName(), strings.Join(p.GetIps(), " "),
					p.GetUid())
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(wrong) > 0 {
		fmt.Fprintf(&text, "\n%s\nthe remotes: semaphorectl status\n", strings.Join(wrong, "\n"))
	}
	return cli.PrintLines(w, text.String())
}

// setsDocument is the format of brokerSets for programs, and for `semaphorectl explain --sets`.
type setsDocument struct {
	Cluster string            `json:"cluster"`
	Now     time.Time         `json:"now"`
	Sets    []json.RawMessage `json:"sets"`
	Links   []json.RawMessage `json:"links"`
}

func printSetsAs(w io.Writer, found *brokerSets, output string) error {
	doc := setsDocument{Cluster: found.Cluster, Now: found.Now, Sets: []json.RawMessage{}, Links: []json.RawMessage{}}
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
	data, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	return cli.PrintDocument(w, data, output)
}

// readSets reads what printSetsAs wrote.
func readSets(data []byte) (*brokerSets, error) {
	var doc setsDocument
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	if doc.Cluster == "" {
		return nil, errors.New("it is not what `semaphorectl policy -o json` prints: no cluster in it")
	}
	out := &brokerSets{Cluster: doc.Cluster, Now: doc.Now}
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

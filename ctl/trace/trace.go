package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// object is the object to follow: KIND/[NAMESPACE/]NAME as in its own cluster.
type object struct {
	kind, namespace, name string
	// sets are the names of the network sets of a set member, as the brokers have them.
	sets []string
}

func parseObject(text string) (object, error) {
	parts := strings.Split(strings.Replace(text, " ", "/", 1), "/")
	_, known := semaphorev1.KindOf(parts[0])
	switch {
	case !known || slices.Contains(parts, ""):
	case parts[0] == "node" && len(parts) == 2:
		return object{kind: parts[0], name: parts[1]}, nil
	case parts[0] != "node" && len(parts) == 3:
		return object{kind: parts[0], namespace: parts[1], name: parts[2]}, nil
	}
	return object{}, fmt.Errorf("%q: use service/NAMESPACE/NAME, endpointslice/NAMESPACE/NAME, setmember/NAMESPACE/POD "+
		"or node/NAME, as the object is called in its own cluster", text)
}

func (o object) String() string {
	if o.namespace == "" {
		return o.kind + "/" + o.name
	}
	return o.kind + "/" + o.namespace + "/" + o.name
}

// concerns reports whether an event is about the object, or about an object that is derived from it in another cluster.
func (o object) concerns(e *semaphorev1.Event) bool {
	kind, name, _ := strings.Cut(e.GetObject(), " ")
	name, _, _ = strings.Cut(name, " for ")
	own := o.name
	if o.namespace != "" {
		own = o.namespace + "/" + o.name
	}
	mirror := naming.Mirror("", o.namespace, o.name)
	switch {
	case kind == o.kind && name == own, o.kind == "endpointslice" && kind == "ownslice" && name == own:
		return true // a slice under the own name of a Service is in its namespace
	case o.kind == "node":
		return kind == "peer" && name == e.GetSource()+"/"+o.name
	case o.kind == "service":
		// Its slices have its name and a random ending; those of the mirror the mirror's, the cluster and a number. An object
		// that is derived from its ServiceExport may have a hash for a name, and is in its namespace too.
		derived := naming.Import(o.namespace, o.name)
		return kind == "service" && (strings.HasSuffix(name, mirror) || strings.HasSuffix(name, derived)) ||
			kind == "serviceimport" && name == own || strings.HasSuffix(kind, "slice") && (strings.HasPrefix(name, own+"-") ||
			strings.Contains(name, mirror+"-") || strings.Contains(name, derived+"-"))
	case o.kind == "setmember":
		set, _ := naming.SplitSetPart(name[strings.LastIndex(name, "/")+1:])
		return (kind == "globalnetworkset" || kind == "networkset") && slices.Contains(o.sets, set)
	}
	return false
}

// watchFilter selects the events that --history and --watch print. An empty field selects all.
type watchFilter struct{ source, kind, namespace, name string }

func (f watchFilter) matches(e *semaphorev1.Event) bool {
	kind, rest, _ := strings.Cut(e.GetObject(), " ")
	rest, _, _ = strings.Cut(rest, " for ")
	namespace, name, namespaced := strings.Cut(rest, "/")
	if !namespaced {
		namespace, name = "", rest
	}
	return (f.source == "" || f.source == e.GetSource()) && (f.kind == "" || f.kind == kind) &&
		(f.namespace == "" || f.namespace == namespace) && (f.name == "" || f.name == name)
}

func (f *watchFilter) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.source, "source", "", "only changes that come from this cluster")
	cmd.Flags().StringVar(&f.kind, "kind", "", "only objects of this kind, such as service, endpointslice or peer")
	cmd.Flags().StringVar(&f.namespace, "of", "", "only objects of this namespace; of a peer, this cluster")
	cmd.Flags().StringVar(&f.name, "name", "", "only objects of this name")
}

const pastWithin = 10 * time.Second

// Past returns the past events of interest that parts remember, oldest first. It fails, beside them, for parts that
// cannot be asked.
func Past(ctx context.Context, parts []*fleet.Part, wanted func(*semaphorev1.Event) bool) ([]*semaphorev1.Event,
	error) {
	ctx, cancel := context.WithTimeout(ctx, pastWithin)
	defer cancel()
	found, failed := fleet.All(parts, func(p *fleet.Part) (out []*semaphorev1.Event, err error) {
		stream, err := p.Watch(ctx, &semaphorev1.WatchRequest{Recent: true, OnlyRecent: true})
		for err == nil {
			var m *semaphorev1.WatchResponse
			if m, err = stream.Recv(); err == nil && m.GetEvent() != nil && wanted(m.GetEvent()) {
				out = append(out, m.GetEvent())
			}
		}
		if !errors.Is(err, io.EOF) {
			return out, fmt.Errorf("%s: %s", p.Where, grpcstatus.Convert(err).Message())
		}
		return out, nil
	})
	all := slices.Concat(found...)
	slices.SortStableFunc(all,
		func(a, b *semaphorev1.Event) int { return a.GetTime().AsTime().Compare(b.GetTime().AsTime()) })
	return all, errors.Join(failed...)
}

// hop is the last event of a part about an object.
type hop struct {
	Part    string    `json:"part"`
	Cluster string    `json:"cluster"`
	Node    string    `json:"node,omitempty"`
	Object  string    `json:"object"`
	Action  string    `json:"action"`
	Detail  string    `json:"detail,omitempty"`
	Time    time.Time `json:"time"`
	// After is the time since the change was observed at its source, in seconds, on two clocks if the clusters differ;
	// absent for unknown.
	After *float64 `json:"after_seconds,omitempty"`
}

// travels are the parts in the order in which a change passes them.
var travels = []string{"exporter", "broker", "agent"}

// hops are the last events of each part about each object, in the order in which a change travels: exporter, broker,
// agents.
func hops(events []*semaphorev1.Event) []hop {
	step := func(e *semaphorev1.Event) int { // a broker receives before it writes
		if strings.HasPrefix(e.GetAction(), "receive") || e.GetAction() == "refuse" {
			return 0
		}
		return 1
	}
	type key struct {
		part, cluster, node, object string
		step                        int
	}
	last := map[key]*semaphorev1.Event{}
	for _, e := range events {
		last[key{e.GetPart(), e.GetCluster(), e.GetNode(), e.GetObject(), step(e)}] = e
	}
	var out []hop
	for _, e := range last {
		h := hop{Part: e.GetPart(), Cluster: e.GetCluster(), Node: e.GetNode(), Object: e.GetObject(),
			Action: e.GetAction(), Detail: e.GetDetail(), Time: e.GetTime().AsTime()}
		if e.GetObservedAt() != nil {
			h.After = new(e.GetTime().AsTime().Sub(e.GetObservedAt().AsTime()).Seconds())
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b hop) int {
		return cmp.Or(slices.Index(travels, a.Part)-slices.Index(travels, b.Part), strings.Compare(a.Cluster, b.Cluster),
			a.Time.Compare(b.Time), strings.Compare(a.Node, b.Node), strings.Compare(a.Object, b.Object))
	})
	return out
}

const objectForms = `OBJECT is service/NAMESPACE/NAME, endpointslice/NAMESPACE/NAME, setmember/NAMESPACE/POD or
node/NAME, as it is called in its own cluster. What it becomes elsewhere is included: mirrors and their slices,
network sets, peers.`

type tracing struct {
	target         fleet.Target
	output         *show.Outputs
	history, watch bool
	only           watchFilter
}

func Command(access *fleet.Access) *cobra.Command {
	c := tracing{target: fleet.Target{Access: access, Parts: []string{fleet.Exporter, fleet.Broker, fleet.Agent},
		AgentsToo: true}}
	cmd := &cobra.Command{
		Use:   "trace OBJECT | --history [OBJECT] | --watch [OBJECT]",
		Short: "show where an object is on its way from cluster to cluster, its past changes, and new ones as they happen",
		Long: `Prints where an object is now at each hop, as the parts hold it, in the order in which a change travels:

  source  the cluster has it, as the exporter has read it
  export  the exporter exports it, and to which clusters
  stream  the broker of each cluster has acknowledged it
  accept  that broker holds it, or why it refuses it
  plan    what that broker makes of it: Services, sets, peers
  write   what the apiserver has of that, and what delays a write, since when and until when
  agents  how many agents have programmed a peer
  kernel  the peer on a node, with --agent NODE

Below is the last change that each part remembers, and AFTER, the time since the object's own cluster saw the change,
on the clocks of two clusters. Give the contexts of all clusters that the object passes.

` + objectForms + `

With --history it prints all events about the object that the parts remember, oldest first. A part remembers the last
1,024 events of each cluster, so that a change of long ago is missing there and in the last changes; where the object
is now is not.

With --watch it streams events, one line each, until Ctrl-C, with --history too the remembered ones first: the time,
the part, the source of the change, what happened to which object, how long after its source saw the change, and why. A
time such as +12ms is all of one clock; +12ms (c2's clock) runs from when c2 saw the change, on c2's clock, to the
event, on that of the part: a difference of the two clocks is in it, and can make it negative. It follows each change of
the object through all parts: to the exporter, the brokers, what they write, and with --agent the nodes. A change begins
with a line of its own, and each of its lines begins with the time of the hop, which is the time since the line of the
change before it, on the clocks of the two parts.

Without OBJECT, --history and --watch have all events of the parts that are asked; --agent then asks that agent alone.
Each part is watched from when it is reached. One that cannot be reached, or that stops, is named on standard error, and
the others continue.

  semaphorectl trace --context c1,c2 service/shop/echo
  semaphorectl trace --context c1,c2 --watch service/shop/echo
  semaphorectl trace --context c1 --history --source c2

Exit code 0 when nothing is refused or failed, 1 when no part knows the object or none can be asked, 2 when it, or the
last change, was refused or failed.`,
		Args: cobra.MaximumNArgs(1),
		RunE: c.run,
	}
	c.target.Flags(cmd)
	show.CompleteArg(cmd, fleet.CompleteTraced(access))
	c.output = show.OutputFlag(cmd, "table", "json", "yaml")
	f := cmd.Flags()
	f.BoolVar(&c.history, "history", false, "all that the parts remember, oldest first")
	f.BoolVarP(&c.watch, "watch", "w", false, "stream what happens, until Ctrl-C")
	c.only.flags(cmd)
	return cmd
}

func (c *tracing) run(cmd *cobra.Command, args []string) (err error) {
	var of object
	switch {
	case len(args) == 1:
		if of, err = parseObject(args[0]); err != nil {
			return err
		}
	case !c.history && !c.watch:
		return errors.New("give one OBJECT, or --history or --watch for all of them")
	default:
		c.target.AgentsToo = false
	}
	if !c.history && !c.watch {
		if c.only != (watchFilter{}) {
			return errors.New("--source, --kind, --of, --name: they are for --history and --watch")
		}
		return c.now(cmd, of)
	}
	if c.output.Chosen == "yaml" {
		return errors.New("--output yaml: with --history and --watch use json, a document for each line")
	}
	if c.watch {
		return c.follow(cmd, of)
	}
	return c.past(cmd, of)
}

func (c *tracing) now(cmd *cobra.Command, of object) error {
	r, err := c.recall(cmd, of, true)
	if err != nil {
		return err
	}
	found := hops(r.events)
	if err := printTrace(cmd.OutOrStdout(), r.object, r.places, found, time.Now(), c.output.Chosen); err != nil {
		return err
	}
	if failed := firstFailure(r.places, found); failed != "" {
		return program.ExitError{Code: show.ExitWrong, Err: errors.New(show.Printable(failed))}
	}
	return nil
}

func (c *tracing) past(cmd *cobra.Command, of object) error {
	r, err := c.recall(cmd, of, false)
	if err != nil {
		return err
	}
	print := c.printer(cmd, new(show.Columns).Print)
	for _, e := range r.events {
		if err := print(&semaphorev1.WatchResponse{Message: &semaphorev1.WatchResponse_Event{Event: e}}); err != nil {
			return err
		}
	}
	return nil
}

type printer func(*semaphorev1.WatchResponse) error

// printer prints text unless JSON is chosen.
func (c *tracing) printer(cmd *cobra.Command, text func(io.Writer, *semaphorev1.WatchResponse) error) printer {
	if c.output.Chosen == "json" {
		text = show.PrintJSON
	}
	return func(m *semaphorev1.WatchResponse) error { return text(cmd.OutOrStdout(), m) }
}

// wanted reports whether an event is printed: of the object, or of any without one.
func (c *tracing) wanted(of object, e *semaphorev1.Event) bool {
	return (of.kind == "" || of.concerns(e)) && c.only.matches(e)
}

// firstFailure is a refusal or a failure: now, or in the last change of a part that cannot tell its present state.
func firstFailure(places []location, all []hop) string {
	for _, p := range places {
		if p.State == "failed" {
			return fmt.Sprintf("%s of %s: %s of %s: %s", p.Part, p.At, p.Hop, p.Object, p.Detail)
		}
	}
	for _, h := range all {
		known := slices.ContainsFunc(places, func(p location) bool { return p.Part == h.Part && p.At == h.Cluster })
		if !known && (h.Action == "refuse" || strings.HasSuffix(h.Action, "failed")) {
			return fmt.Sprintf("%s of %s: %s %s: %s", h.Part, h.Cluster, h.Action, h.Object, h.Detail)
		}
	}
	return ""
}

// recalled is the parts' knowledge of an object.
type recalled struct {
	object object
	places []location
	events []*semaphorev1.Event
}

// recall asks the parts for their memory of an object, or of all, and if wanted where it is now; nothing of either is
// an error.
func (c *tracing) recall(cmd *cobra.Command, of object, now bool) (r recalled, err error) {
	r.object = of
	parts, unreached := c.target.Dial(cmd.Context())
	if len(parts) == 0 {
		return r, unreached
	}
	defer func() {
		for _, p := range parts {
			p.Close()
		}
	}()
	r.object.findSets(cmd.Context(), parts)
	events, err := Past(cmd.Context(), parts, func(e *semaphorev1.Event) bool { return c.wanted(r.object, e) })
	r.events = events
	if now {
		places, notLocated := locate(cmd.Context(), parts, r.object)
		r.places, err = places, errors.Join(err, notLocated)
	}
	err = errors.Join(unreached, err)
	there := slices.ContainsFunc(r.places, func(p location) bool { return p.State != "absent" })
	if len(r.events) == 0 && !there {
		switch {
		case err != nil && r.object.kind == "":
			return r, fmt.Errorf("such events are not known: %w", err)
		case err != nil:
			return r, fmt.Errorf("%s: not known: %w", r.object, err)
		case now:
			return r, fmt.Errorf("%s: no part knows it: it does not exist, or is not exported", r.object)
		case r.object.kind == "":
			return r, errors.New("no part remembers such an event")
		}
		return r, fmt.Errorf("%s: no part remembers it: it does not exist, is not exported, or did not change for long",
			r.object)
	}
	if err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "not asked:", show.Printable(err.Error()))
	}
	return r, nil
}

func (o *object) findSets(ctx context.Context, parts []*fleet.Part) {
	if o.kind != "setmember" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pastWithin)
	defer cancel()
	for _, p := range parts {
		found, err := fleet.ReceiveSets(ctx, p, &semaphorev1.ListSetsRequest{Namespace: o.namespace, Pod: o.name})
		if err != nil {
			continue // not a broker, or without sets
		}
		for _, s := range found {
			for _, of := range s.GetObjects() {
				set, _ := naming.SplitSetPart(of.GetName())
				o.sets = append(o.sets, set)
			}
		}
	}
}

func printTrace(w io.Writer, o object, places []location, all []hop, now time.Time, output string) error {
	if output != "table" {
		return show.PrintValue(w, struct {
			Object string     `json:"object"`
			Places []location `json:"places"`
			Hops   []hop      `json:"hops"`
		}{o.String(), places, all}, output)
	}
	out := o.String() + "\n"
	if len(places) > 0 {
		out += "\nNOW\n" + placeTable(places, now)
	}
	if len(all) > 0 {
		out += "\nLAST CHANGE\n" + hopTable(all, now)
	}
	return show.PrintLines(w, out)
}

func hopTable(all []hop, now time.Time) string {
	return show.Tabbed(func(t io.Writer) {
		fmt.Fprintln(t, "PART\tCLUSTER\tACTION\tOBJECT\tAGE\tAFTER\tDETAIL")
		for _, h := range all {
			at := h.Cluster
			if h.Node != "" {
				at += "/" + h.Node
			}
			after := "-"
			if h.After != nil {
				after = (time.Duration(*h.After * float64(time.Second))).Round(100 * time.Microsecond).String()
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", h.Part, show.Printable(at), h.Action, show.Printable(h.Object),
				show.Short(now.Sub(h.Time)), after, show.Printable(h.Detail))
		}
	})
}

package ctl

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxPreview bounds a request to a broker in bytes, which accepts 4 MiB.
const maxPreview = 7 << 19

func previewCommand(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Parts: []string{fleet.Exporter, fleet.Broker}}
	var files []string
	var output *outputs
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "preview -f FILE",
		Short: "what RemoteClusters, Services, pods and ServiceExports would change before they are applied",
		Long: `Prints what objects would change if they were applied, and applies nothing. The exporters and brokers of the
clusters decide, as they would on the objects themselves, on a copy of what they hold.

Of a RemoteCluster: whether it would be in effect or why not; what its rules and their selectors match; what the cluster
would export to it, or no longer; what would be refused of its objects, and by which rule; and which mirrors and global
Services would be made, changed or deleted, or clash. Of a Service or a pod, such as one with another label or
annotation: what would be exported, and to whom. Of a ServiceExport: whether it would be valid, to whom it would export
its Service, and, in brokers that have mcs.enabled, which ServiceImports would be made, and conflicts.

A RemoteCluster counts in all given clusters but its own, and all else in that of the first --context. With the
context of a remote, too, what it would export is judged here, even before the two are connected.

  semaphorectl preview --context c1 --context c2 -f remoteclusters.yaml
  kubectl --context c1 -n shop label service echo mirror.semaphore.uw.io/mirror-service=true \
    --dry-run=server -o yaml | semaphorectl preview --context c1 -f -

Exit code 0, 1 when not all can be asked, and 2 when something would be rejected or refused, or clash.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			documents, err := readDocuments(cmd.InOrStdin(), files)
			if err != nil {
				return err
			}
			parts, unreached := t.Dial(cmd.Context())
			if len(parts) == 0 {
				return unreached
			}
			defer func() {
				for _, p := range parts {
					_ = p.Close()
				}
			}()
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			p := &previews{documents: documents, access: access}
			p.ask(ctx, parts, unreached)
			if err := p.print(cmd.OutOrStdout(), output.chosen); err != nil {
				return err
			}
			return p.exit()
		},
	}
	t.Flags(cmd)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "`file` with objects, - for standard input; may be repeated")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait for the answer")
	required(cmd, "filename")
	output = outputFlag(cmd, "table", "json", "yaml")
	return cmd
}

// document is an object of a file, as JSON.
type document struct {
	Kind     string
	Metadata struct{ Name string }
	text     string
}

func (d document) isRemote() bool { return d.Kind == "RemoteCluster" }

func readDocuments(in io.Reader, files []string) (all []document, err error) {
	for _, file := range files {
		from := in
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return nil, fmt.Errorf("-f: %w", err)
			}
			defer f.Close()
			from = f
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(from))
		for {
			text, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("-f %s: %w", file, err)
			}
			found, err := documentsOf(text)
			if err != nil {
				return nil, fmt.Errorf("-f %s: %w", file, err)
			}
			all = append(all, found...)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("-f: there is no object")
	}
	return all, nil
}

// documentsOf returns the object of a document, or those of a List.
func documentsOf(text []byte) ([]document, error) {
	data, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	if string(data) == "null" {
		return nil, nil
	}
	var list struct {
		Kind  string
		Items []json.RawMessage
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, err
	}
	if !strings.HasSuffix(list.Kind, "List") {
		list.Items = []json.RawMessage{data}
	}
	var all []document
	for _, item := range list.Items {
		d := document{text: string(item)}
		if err := json.Unmarshal(item, &d); err != nil {
			return nil, err
		}
		if !d.isRemote() && !slices.Contains([]string{"Service", "Pod", "ServiceExport"}, d.Kind) {
			return nil, fmt.Errorf("%s %s: preview knows RemoteClusters, Services, Pods and ServiceExports", d.Kind,
				d.Metadata.Name)
		}
		all = append(all, d)
	}
	return all, nil
}

// previewed is one line of the answer.
type previewed struct {
	Cluster string `json:"cluster"`
	Part    string `json:"part"`
	Action  action `json:"action"`
	Object  string `json:"object,omitempty"`
	Remote  string `json:"remote,omitempty"`
	Code    string `json:"code,omitempty"`
	Text    string `json:"text,omitempty"`
}

// action is an action, which is a word in JSON.
type action semaphorev1.PreviewAction

func (a action) String() string               { return semaphorev1.PreviewActionName(semaphorev1.PreviewAction(a)) }
func (a action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// previews are the answers of all parts.
type previews struct {
	documents []document
	lines     []previewed
	asked     int
	failed    []string
	access    *fleet.Access
}

// previewSide is a cluster with its parts.
type previewSide struct {
	cluster          string
	first            bool
	exporter, broker *fleet.Part
}

// ask asks exporters, and then brokers, with what exporters of remotes would export to them.
func (p *previews) ask(ctx context.Context, parts []*fleet.Part, unreached error) {
	if unreached != nil {
		p.fail(unreached.Error())
	}
	var sides []*previewSide
	for i, part := range parts {
		s, err := part.GetStatus(ctx, &semaphorev1.GetStatusRequest{})
		if err != nil {
			p.fail(part.Where + ": " + grpcstatus.Convert(err).Message())
			continue
		}
		var of *previewSide
		for _, known := range sides {
			if known.cluster == s.GetCluster() {
				of = known
			}
		}
		if of == nil {
			of = &previewSide{cluster: s.GetCluster()}
			sides = append(sides, of)
		}
		// Not the first one that answers: Services and pods would count in a cluster for which they are not meant.
		if given := p.access.Contexts; len(given) > 0 && part.Context == given[0] || len(given) == 0 && i == 0 {
			of.first = true
		}
		switch s.GetPart() {
		case fleet.Exporter:
			of.exporter = part
		case fleet.Broker:
			of.broker = part
		}
	}
	for _, s := range sides {
		if documents := p.of(s.cluster, s.first); s.exporter != nil && len(documents) > 0 {
			p.call(ctx, s.cluster, fleet.Exporter, s.exporter, &semaphorev1.PreviewRequest{Objects: documents}, true)
		}
	}
	for i, s := range sides {
		if s.broker == nil {
			continue
		}
		req := &semaphorev1.PreviewRequest{Objects: p.of(s.cluster, false)}
		for j, other := range sides {
			if other.exporter != nil && (i != j && p.concern(other.cluster, s.cluster, other.first) ||
				i == j && other.first && p.exportsServices()) {
				p.exports(ctx, req, other, s.cluster)
			}
		}
		if len(req.Objects)+len(req.Exports) > 0 {
			p.call(ctx, s.cluster, fleet.Broker, s.broker, req, true)
		}
	}
}

// of returns the documents that would be applied in a cluster.
func (p *previews) of(cluster string, first bool) (out []string) {
	for _, d := range p.documents {
		if d.isRemote() && d.Metadata.Name != cluster || !d.isRemote() && first {
			out = append(out, d.text)
		}
	}
	return out
}

// concern reports whether the documents may change what one cluster exports to another, or what is accepted of it.
func (p *previews) concern(from, to string, first bool) bool {
	for _, d := range p.documents {
		if d.isRemote() && (d.Metadata.Name == from || d.Metadata.Name == to) || !d.isRemote() && first {
			return true
		}
	}
	return false
}

// exportsServices reports whether there are ServiceExports, which the own cluster imports, too.
func (p *previews) exportsServices() bool {
	return slices.ContainsFunc(p.documents, func(d document) bool { return d.Kind == "ServiceExport" })
}

// exports adds to a request for a broker everything that another cluster would export to it, even if that is nothing.
// It never adds a part, because the rest would read as withdrawn, and adds nothing if that cluster does not publish to
// the broker.
func (p *previews) exports(ctx context.Context, req *semaphorev1.PreviewRequest, from *previewSide, to string) {
	answer := p.call(ctx, from.cluster, fleet.Exporter, from.exporter,
		&semaphorev1.PreviewRequest{Objects: p.of(from.cluster, from.first), To: to}, false)
	e, left := answer.GetExports(), int(answer.GetMoreExports())
	if left > 0 {
		left += len(e.GetObjects())
	} else if e != nil {
		e.Cluster = from.cluster
		if proto.Size(req)+proto.Size(e) <= maxPreview {
			req.Exports = append(req.Exports, e)
		} else {
			left = len(e.GetObjects())
		}
	}
	if left > 0 {
		p.lines = append(p.lines, previewed{to, fleet.Broker, action(debug.Note), "exports of " + from.cluster,
			from.cluster, "", fmt.Sprintf("%d objects are too many for a preview: the following is of what is accepted now",
				left)})
	}
}

// fail records what could not be asked, once.
func (p *previews) fail(why string) {
	if !slices.Contains(p.failed, why) {
		p.failed = append(p.failed, why)
	}
}

func (p *previews) call(ctx context.Context, cluster, name string, part *fleet.Part, req *semaphorev1.PreviewRequest,
	show bool) *semaphorev1.PreviewResponse {
	answer, err := part.Preview(ctx, req)
	if err != nil {
		why := grpcstatus.Convert(err).Message()
		if grpcstatus.Code(err) == codes.Unimplemented {
			why = "it is too old for previews"
		}
		p.fail(part.Where + ": " + why)
		return nil
	}
	p.asked++
	if !show {
		return answer
	}
	for _, c := range answer.GetChanges() {
		p.lines = append(p.lines, previewed{cluster, name, action(c.GetAction()), c.GetObject(), c.GetCluster(), c.GetCode(),
			c.GetText()})
	}
	if more := answer.GetMore(); more > 0 {
		p.lines = append(p.lines, previewed{cluster, name, action(debug.Note), "", "", "", fmt.Sprintf("and %d more", more)})
	}
	return answer
}

func (p *previews) print(w io.Writer, output string) error {
	if output != "table" {
		data, err := json.MarshalIndent(struct {
			Changes []previewed `json:"changes"`
			Failed  []string    `json:"failed,omitempty"`
		}{p.lines, p.failed}, "", "  ")
		if err != nil {
			return err
		}
		return cli.PrintDocument(w, data, output)
	}
	if p.asked == 0 {
		return nil // the error has the reason
	}
	var out strings.Builder
	for _, why := range p.failed {
		fmt.Fprintln(&out, strings.Join(cli.Wrap("not asked: "+cli.Printable(why), "  ", cli.LineWidth), "\n"))
	}
	if len(p.lines) == 0 {
		fmt.Fprintln(&out, "nothing would change")
		return cli.PrintLines(w, out.String())
	}
	at := ""
	for _, l := range p.lines {
		if now := l.Cluster + " " + l.Part; now != at {
			at = now
			fmt.Fprintln(&out, at)
		}
		fmt.Fprintln(&out, strings.Join(cli.Wrap(l.text(), "            ", cli.LineWidth), "\n"))
	}
	fmt.Fprintln(&out, "nothing was applied; what is wrong now: "+
		command("status", p.access.Contexts, p.access.Kubeconfig, p.access.Namespace))
	return cli.PrintLines(w, out.String())
}

// text is the line without its place.
func (l previewed) text() string {
	object := l.Object
	if l.Remote != "" {
		switch semaphorev1.PreviewAction(l.Action) {
		case debug.Export, debug.Changed, debug.Withdraw:
			object += " to " + l.Remote
		case debug.Refuse, debug.Select:
			object += " of " + l.Remote
		}
	}
	var said []string
	for _, part := range []string{strings.TrimSpace(object), l.Code, l.Text} {
		if part != "" {
			said = append(said, part)
		}
	}
	return cli.Printable(fmt.Sprintf("  %-8s  %s", l.Action, strings.Join(said, ": ")))
}

func (p *previews) exit() error {
	if p.asked == 0 {
		return errors.New(cli.Printable(strings.Join(p.failed, "; ")))
	}
	wrong := 0
	for _, l := range p.lines {
		switch semaphorev1.PreviewAction(l.Action) {
		case debug.Reject, debug.Refuse, debug.Clash:
			wrong++
		}
	}
	switch {
	case wrong > 0:
		return program.ExitError{Code: cli.ExitWrong, Err: fmt.Errorf("%d would be rejected, refused or clash", wrong)}
	case len(p.failed) > 0:
		return errors.New("not all were asked")
	}
	return nil
}

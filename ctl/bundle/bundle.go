// Package bundle writes an archive of the answers of parts and apiservers, without secrets, for a report.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/ctl/trace"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type bundle struct {
	files  map[string]string
	failed []string
	// names are the names to hash: those of nodes, namespaces, Services, pods, sets and policies.
	names map[string]bool
}

func newBundle() *bundle { return &bundle{files: map[string]string{}, names: map[string]bool{}} }

func Command(access *fleet.Access) *cobra.Command {
	var hash bool
	var nodes []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "bundle [FILE]",
		Short: "write an archive for support: status, events, configuration and objects of all sides",
		Long: `Writes FILE, by default semaphore-bundle.tar.gz, with what helps to find a fault and no other command of
kubectl collects: of each --context status, recent events and sets of the parts, their ConfigMaps, the Corefile, and
objects that semaphore reads and writes: RemoteClusters, ServiceExports and ServiceImports, slices of mirrors, Calico's
pools, blocks and sets, and policies. Nodes, Services, workloads, Kubernetes' events and the logs of pods are those of

  kubectl --context C cluster-info dump --namespaces semaphore,kube-system --output-directory DIR

from which nothing is removed. Here Secrets are not read, and private keys, tokens and everything that
looks like one are replaced by [removed]. IPs stay. With --hash-names, names of nodes, namespaces, Services, pods, sets
and policies are replaced by hashes, which are the same within one archive and differ between archives.

Look at the archive before you send it.

Exit code 0, 1 when nothing could be collected, 2 when something could not be: errors.txt in the archive says what.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := "semaphore-bundle.tar.gz"
			if len(args) == 1 {
				file = args[0]
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			b := newBundle()
			clusters, err := access.Clusters()
			if err != nil {
				return err
			}
			b.collectAll(ctx, clusters, nodes)
			if len(b.files) == 0 {
				return fmt.Errorf("nothing could be collected: %s", strings.Join(b.failed, "; "))
			}
			if err := b.writeFile(file, hash, time.Now()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%[1]s: %[2]d files of %[3]s\nlook at it before you send it: tar -xzf %[1]s\n",
				file, len(b.files), show.Number(uint64(len(clusters)), "cluster", "clusters"))
			if len(b.failed) > 0 {
				return program.ExitError{Code: show.ExitWrong, Err: fmt.Errorf(
					"%s could not be collected, errors.txt in the archive lists all; the first: %s",
					show.Number(uint64(len(b.failed)), "thing", "things"), show.Printable(b.failed[0]))}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&hash, "hash-names", false,
		"replace names of nodes, namespaces, Services, pods, sets and policies by hashes")
	f.StringSliceVar(&nodes, "agent", nil,
		"`node` whose agent is asked; may be repeated (default: none, as brokers know most)")
	show.TimeoutFlag(cmd, &timeout, 2*time.Minute)
	return cmd
}

func (b *bundle) fail(format string, args ...any) {
	b.failed = append(b.failed, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

// collectAll collects the state of all clusters concurrently, so that one that does not answer takes no time from
// others.
func (b *bundle) collectAll(ctx context.Context, clusters []*fleet.Cluster, nodes []string) {
	all, _ := fleet.All(clusters, func(c *fleet.Cluster) (*bundle, error) {
		one := newBundle()
		one.collect(ctx, c, nodes)
		return one, nil
	})
	for _, one := range all {
		maps.Copy(b.files, one.files)
		maps.Copy(b.names, one.names)
		b.failed = append(b.failed, one.failed...)
	}
}

func (b *bundle) collect(ctx context.Context, c *fleet.Cluster, nodes []string) {
	for i := range bundled {
		if err := b.objects(ctx, c, &bundled[i]); fleet.Silent(err) {
			return // it would not answer the other requests, either
		}
	}
	for _, part := range []string{fleet.Exporter, fleet.Broker} {
		b.part(ctx, c, part, part, "")
	}
	for _, node := range nodes {
		b.part(ctx, c, "agent-"+node, fleet.Agent, node)
	}
}

// part adds the status, the recent events and the sets of a part.
func (b *bundle) part(ctx context.Context, c *fleet.Cluster, name, part, node string) {
	in := c.Context
	p, err := c.Part(ctx, part, node)
	if err != nil {
		b.fail("%s: %s: %v", in, name, err)
		return
	}
	defer p.Close()
	if p.Standby != nil {
		b.fail("%s: %s: %v", in, name, p.Standby)
	}
	add := func(file string, m proto.Message) {
		data, err := protojson.MarshalOptions{UseProtoNames: true, Multiline: true}.Marshal(m)
		if err != nil {
			b.fail("%s: %s: %v", in, name, err)
			return
		}
		b.files[in+"/"+file] = string(data)
	}
	s, err := p.GetStatus(ctx, &semaphorev1.GetStatusRequest{})
	if err != nil {
		b.fail("%s: status of %s: %s", in, name, grpcstatus.Convert(err).Message())
		return
	}
	add("status/"+name+".json", s)
	for _, n := range s.GetNodes() {
		b.names[n.GetNode()] = true
	}
	for _, pair := range s.GetSilentPairs() {
		b.names[pair.GetRemoteNode()] = true
	}
	events, err := trace.Past(ctx, []*fleet.Part{p}, func(*semaphorev1.Event) bool { return true })
	if err != nil {
		b.fail("%s: events of %s: %v", in, name, err)
	}
	var lines bytes.Buffer
	print := new(show.Columns)
	for _, e := range events {
		_, object, _ := strings.Cut(e.GetObject(), " ")
		object, _, _ = strings.Cut(object, " for ")
		for one := range strings.SplitSeq(object, "/") {
			b.names[one] = true
		}
		_ = print.Print(&lines, &semaphorev1.WatchResponse{Message: &semaphorev1.WatchResponse_Event{Event: e}})
	}
	b.files[in+"/events/"+name+".txt"] = lines.String()
	if name != fleet.Broker {
		return
	}
	sets, err := fleet.ReceiveSets(ctx, p, &semaphorev1.ListSetsRequest{})
	if grpcstatus.Code(err) == codes.Unimplemented { // it has no feature policy
		return
	}
	if err != nil {
		b.fail("%s: sets: %s", in, grpcstatus.Convert(err).Message())
		return
	}
	for _, one := range sets {
		b.names[one.GetNamespace()], b.names[one.GetName()] = true, true
		for _, pod := range one.GetPods() {
			b.names[pod.GetName()] = true
		}
	}
	add("sets.json", &semaphorev1.ListSetsResponse{Sets: sets})
}

// pathIn returns a path for a file of an archive, other than those that were used before. Parts of its name came from
// an apiserver: none may lead out of the archive, or control a terminal that lists it.
func pathIn(name string, used map[string]bool) string {
	elements := strings.Split(strings.ReplaceAll(show.Printable(name), `\`, "_"), "/")
	for i, e := range elements {
		if e == "" || strings.Trim(e, ".") == "" {
			elements[i] = "_" + strings.ReplaceAll(e, ".", "_")
		}
	}
	path := strings.Join(elements, "/")
	for n := 2; used[path]; n++ {
		path = fmt.Sprintf("%s-%d", strings.Join(elements, "/"), n)
	}
	used[path] = true
	return path
}

func (b *bundle) writeFile(file string, hash bool, now time.Time) (err error) {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	return b.write(out, hash, now)
}

func (b *bundle) write(w io.Writer, hash bool, now time.Time) error {
	b.files["errors.txt"] = strings.Join(b.failed, "\n")
	b.files["version.txt"] = program.Version + "\n"
	hide := func(s string) string { return s }
	if hash {
		salt := make([]byte, 16)
		if _, err := rand.Read(salt); err != nil {
			return err
		}
		hide = hasher(b.names, salt)
	}
	zipped := gzip.NewWriter(w)
	archive := tar.NewWriter(zipped)
	paths := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(b.files)) {
		path := pathIn(hide(name), paths)
		text := hide(removeSecrets(b.files[name]))
		header := &tar.Header{Name: "semaphore-bundle/" + path, Mode: 0o600, Size: int64(len(text)), ModTime: now}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.WriteString(archive, text); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zipped.Close())
}

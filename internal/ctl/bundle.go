package ctl

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// bundled are the objects of an archive. Secrets are never read.
var bundled = []struct {
	file     string
	resource schema.GroupVersionResource
	// inNamespace is for objects of the parts' namespace, selector for semaphore's objects in all namespaces.
	inNamespace bool
	selector    string
}{
	{"pods", podsGVR, true, partsSelector},
	{"deployments", schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, true, partsSelector},
	{"daemonsets", schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}, true, partsSelector},
	{"configmaps", schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, true, ""},
	{"leases", schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, true, ""},
	{"events", schema.GroupVersionResource{Version: "v1", Resource: "events"}, true, ""},
	{"remoteclusters", schema.GroupVersionResource{Group: "semaphore.uw.io", Version: "v1alpha1",
		Resource: "remoteclusters"},
		false, ""},
	{"services", servicesGVR, false, ownedSelector},
	{"endpointslices", slicesGVR, false, ownedSelector},
	{"nodes", nodesGVR, false, ""},
	{"ippools", schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: "ippools"},
		false, ""},
	{"globalnetworksets", schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1",
		Resource: "globalnetworksets"}, false, ""},
}

// The namespace can have pods and ConfigMaps of others. partsSelector selects the parts; semaphore's ConfigMaps have
// ourName in their names.
const partsSelector, ourName = "app.kubernetes.io/name=semaphore", "semaphore"

const ownedSelector = naming.LabelManagedBy + "=" + naming.ManagedByBroker

// logLines is how many lines of each part's log an archive has.
const logLines = 2000

// bundle is an archive that is being made.
type bundle struct {
	files  map[string]string
	failed []string
	// names are the names to hash: those of nodes, namespaces, Services and pods.
	names map[string]bool
}

func bundleCommand(access *fleet.Access) *cobra.Command {
	var file string
	var hash bool
	var nodes []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "write an archive for support: status, events, logs, configuration and objects of all sides",
		Long: `Writes a .tar.gz with what helps to find a fault: status and recent events of the parts, their logs,
their ConfigMaps, and the objects that semaphore reads and writes, of each --context. Secrets are not
read. Private keys, tokens and everything that looks like one are replaced by [removed]. IPs stay. With
--hash-names, names of nodes, namespaces, Services and pods are replaced by hashes, which are the same
within one archive and differ between archives.

Look at the archive before you send it.

Exit code 0, 1 when nothing could be collected, 2 when something could not be: errors.txt in the archive says what.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			b := &bundle{files: map[string]string{}, names: map[string]bool{}}
			clusters, err := access.Clusters()
			if err != nil {
				return err
			}
			for _, c := range clusters {
				b.collect(ctx, access, c, nodes)
			}
			if len(b.files) == 0 {
				return fmt.Errorf("nothing could be collected: %s", strings.Join(b.failed, "; "))
			}
			if err := b.writeFile(file, hash, time.Now()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%[1]s: %[2]d files of %[3]s\nlook at it before you send it: tar -xzf %[1]s\n", file,
				len(b.files), number(uint64(len(clusters)), "cluster", "clusters"))
			if len(b.failed) > 0 {
				return program.ExitError{Code: cli.ExitWrong, Err: fmt.Errorf(
					"%s could not be collected, errors.txt in the archive lists all; the first: %s",
					number(uint64(len(b.failed)), "thing", "things"), cli.Printable(b.failed[0]))}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", "semaphore-bundle.tar.gz", "`file` to write")
	f.BoolVar(&hash, "hash-names", false, "replace names of nodes, namespaces, Services and pods by hashes")
	f.StringSliceVar(&nodes, "agent", nil,
		"`node` whose agent is asked; may be repeated (default: none, as brokers know most)")
	f.DurationVar(&timeout, "timeout", 2*time.Minute, "how long to collect")
	return cmd
}

func (b *bundle) fail(format string, args ...any) {
	b.failed = append(b.failed, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

// collect collects the state of one cluster.
func (b *bundle) collect(ctx context.Context, access *fleet.Access, c *fleet.Cluster, nodes []string) {
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		b.fail("%s: client for the apiserver: %v", c.Context, err)
		return
	}
	for _, o := range bundled {
		in := ""
		if o.inNamespace {
			in = c.Namespace
		}
		list, err := client.Resource(o.resource).Namespace(in).List(ctx, metav1.ListOptions{LabelSelector: o.selector})
		if apierrors.IsNotFound(err) {
			continue // the cluster does not serve that type
		}
		if err != nil {
			b.fail("%s: %s: %v", c.Context, o.file, err)
			continue
		}
		b.addObjects(c.Context+"/objects/"+o.file+".json", o.file, list)
		if o.file == "pods" {
			for i := range list.Items {
				b.log(ctx, c, &list.Items[i])
			}
		}
	}
	one := &fleet.Access{Kubeconfig: access.Kubeconfig, Namespace: access.Namespace}
	if len(access.Contexts) > 0 {
		one.Contexts = []string{c.Context}
	}
	for _, part := range []string{fleet.Exporter, fleet.Broker} {
		b.part(ctx, c.Context, part, &fleet.Target{Access: one, Parts: []string{part}})
	}
	for _, node := range nodes {
		b.part(ctx, c.Context, "agent-"+node, &fleet.Target{Access: one, Parts: []string{fleet.Agent}, Nodes: []string{node}})
	}
}

// addObjects adds objects without fields that nobody needs, and records their names.
func (b *bundle) addObjects(file, kind string, list *unstructured.UnstructuredList) {
	if kind == "configmaps" {
		list.Items = slices.DeleteFunc(list.Items, func(o unstructured.Unstructured) bool {
			return !strings.Contains(o.GetName(), ourName)
		})
	}
	for i := range list.Items {
		o := &list.Items[i]
		o.SetManagedFields(nil)
		removeSecretValues(o.Object)
		annotations := o.GetAnnotations()
		delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
		o.SetAnnotations(annotations)
		switch kind {
		case "nodes", "pods", "services":
			b.names[o.GetName()] = true
		}
		b.names[annotations[naming.AnnotationSourceName]] = true
		b.names[annotations[naming.AnnotationSourceNamespace]] = true
	}
	data, err := json.MarshalIndent(list, "", " ")
	if err != nil {
		b.fail("%s: %v", file, err)
		return
	}
	b.files[file] = string(data)
}

// log adds the end of the log of each container of a pod.
func (b *bundle) log(ctx context.Context, c *fleet.Cluster, pod *unstructured.Unstructured) {
	client, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		b.fail("%s: client for the apiserver: %v", c.Context, err)
		return
	}
	base, _, err := rest.DefaultServerUrlFor(c.Config)
	if err != nil {
		b.fail("%s: %v", c.Context, err)
		return
	}
	containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
	for _, one := range containers {
		container, _ := one.(map[string]any)
		name, _ := container["name"].(string)
		at := base.JoinPath("api/v1/namespaces", pod.GetNamespace(), "pods", pod.GetName(), "log")
		at.RawQuery = fmt.Sprintf("container=%s&tailLines=%d", name, logLines)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
		if err != nil {
			b.fail("%s: %v", c.Context, err)
			continue
		}
		answer, err := client.Do(request)
		if err != nil {
			b.fail("%s: log of %s: %v", c.Context, pod.GetName(), err)
			continue
		}
		text, err := io.ReadAll(io.LimitReader(answer.Body, 16<<20))
		answer.Body.Close()
		if err == nil && answer.StatusCode != http.StatusOK {
			err = errors.New("the apiserver answers " + answer.Status)
		}
		if err != nil {
			b.fail("%s: log of %s: %v", c.Context, pod.GetName(), err)
			continue
		}
		b.files[c.Context+"/logs/"+pod.GetName()+"-"+name+".log"] = string(text)
	}
}

// part adds the status, the recent events and the sets of a part.
func (b *bundle) part(ctx context.Context, in, name string, t *fleet.Target) {
	parts, err := t.Dial(ctx)
	if len(parts) == 0 {
		b.fail("%s: %s: %v", in, name, err)
		return
	}
	p := parts[0]
	defer p.Close()
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
	events, err := past(ctx, parts[:1], func(*semaphorev1.Event) bool { return true })
	if err != nil {
		b.fail("%s: events of %s: %v", in, name, err)
	}
	var lines bytes.Buffer
	print := new(columns)
	for _, e := range events {
		_, object, _ := strings.Cut(e.GetObject(), " ")
		object, _, _ = strings.Cut(object, " for ")
		for one := range strings.SplitSeq(object, "/") {
			b.names[one] = true
		}
		_ = print.print(&lines, &semaphorev1.WatchResponse{Message: &semaphorev1.WatchResponse_Event{Event: e}})
	}
	b.files[in+"/events/"+name+".txt"] = lines.String()
	if name != fleet.Broker {
		return
	}
	sets, err := receiveSets(ctx, p, &semaphorev1.ListSetsRequest{})
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

// writeFile writes the archive.
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
	var names []string
	for name := range b.files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		text := hide(removeSecrets(b.files[name]))
		header := &tar.Header{Name: "semaphore-bundle/" + hide(name), Mode: 0o600, Size: int64(len(text)), ModTime: now}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.WriteString(archive, text); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zipped.Close())
}

const removed = "[removed]"

// secretWords match names of secret values.
const secretWords = `(?:password|passwd|secret|token|private_?key|api_?key|credential|key-data)`

var secretName = regexp.MustCompile(`(?i)` + secretWords)

// removeSecretValues replaces the values of environment variables and arguments whose names match secretWords.
func removeSecretValues(v any) {
	switch v := v.(type) {
	case map[string]any:
		name, _ := v["name"].(string)
		if _, has := v["value"].(string); has && secretName.MatchString(name) {
			v["value"] = removed
		}
		for _, one := range v {
			removeSecretValues(one)
		}
	case []any:
		for _, one := range v {
			removeSecretValues(one)
		}
	}
}

// secrets match what must not be in an archive: PEM blocks of private keys, JSON Web Tokens (RFC 7519), keys of 32
// bytes in base64, as WireGuard's are, also public ones, users in URLs, and values whose name matches secretWords, in
// blocks of YAML and on one line. Groups are kept.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[^"-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?`),
	regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`),
	regexp.MustCompile(`(?i)bearer\s+[A-Za-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`[A-Za-z0-9+/]{43}=`),
	regexp.MustCompile(`(://)[^/\s:@"]+:[^/\s@"]+@`),
	// In JSON the lines of a block are separated by \n.
	regexp.MustCompile(`(?i)(` + secretWords + `s?\s*:\s*[|>][-+0-9]*)(?:(?:\n|\\+n)[ \t]+[^\n\\"]*)+`),
	regexp.MustCompile(`(?i)(` + secretWords + `s?\\?"?\s*[:=]\s*\\?"?)[^\s"\\,}\[{][^"\\,}\n]{5,}`),
}

// removeSecrets replaces what matches secrets.
func removeSecrets(text string) string {
	for _, s := range secrets {
		text = s.ReplaceAllString(text, "${1}"+removed)
	}
	return text
}

// common are names that identify nobody, and without which texts cannot be read.
var common = []string{"", "semaphore", "default", "kube-system", "service", "node", "pod", "broker",
	"exporter", "agent",
	"global", "system", "state", "file"}

// hasher replaces names by hashes, where they are complete words or parts of a name between separators.
func hasher(names map[string]bool, salt []byte) func(string) string {
	var all []string
	for name := range names {
		if !slices.Contains(common, name) && !strings.HasPrefix(name, "semaphore-") {
			all = append(all, name)
		}
	}
	// The longest first: a part of a name must not be replaced before the complete name.
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	if len(all) == 0 {
		return func(s string) string { return s }
	}
	for i := range all {
		all[i] = regexp.QuoteMeta(all[i])
	}
	find := regexp.MustCompile(`\b(?:` + strings.Join(all, "|") + `)\b`)
	return func(text string) string {
		return find.ReplaceAllStringFunc(text, func(name string) string {
			sum := sha256.Sum256(append(slices.Clone(salt), name...))
			return "h" + hex.EncodeToString(sum[:5])
		})
	}
}

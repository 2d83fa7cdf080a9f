package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// commandDocuments are the documents whose commands the tests run. A fenced block with the info string sh is run as
// printed for c1, and then with c1 and c2 swapped; blocks for one cluster only run for both at the same time. A comment
// on the line before the fence changes that:
//
//	<!-- not run: WHY -->        the block is not run
//	<!-- within: 30s -->         the commands are retried for at most this time
//	<!-- exit codes: 0 2 -->     the accepted exit codes, by default 0
//	<!-- file: PATH -->          the block, of any language, is written to PATH
//	<!-- after: WHAT -->         a change that the text describes comes first, see changes
//
// TestNodes runs turning-on-encryption.md, and TestDocuments runs the others.
var commandDocuments = []string{"README.md", "docs/install.md", "docs/overlays.md", "docs/services.md",
	"docs/sets.md", "docs/explain.md", "docs/removal.md", "docs/turning-on-encryption.md"}

// block is a fenced block of a document.
type block struct {
	file     string
	line     int // of the opening fence
	section  string
	language string
	// word and rest are the parts of the comment before it: "exit codes" and "0 2".
	word, rest string
	text       string
}

var (
	note        = regexp.MustCompile(`^<!-- (not run|within|exit codes|file|after): (.*) -->$`)
	clusterName = regexp.MustCompile(`\bc[12]\b`)
)

// blocksOf returns the fenced blocks of a document. A block without a language is an error, because it would be unclear
// whether it is run.
func blocksOf(file, text string) ([]block, error) {
	var all []block
	var open *block
	section, before := "", ""
	for i, line := range strings.Split(text, "\n") {
		switch {
		case open == nil && strings.HasPrefix(line, "## "):
			section = strings.TrimPrefix(line, "## ")
		case open == nil && strings.HasPrefix(strings.TrimSpace(line), "```"):
			open = &block{file: file, line: i + 1, section: section,
				language: strings.TrimPrefix(strings.TrimSpace(line), "```")}
			if open.language == "" {
				return nil, fmt.Errorf("%s:%d: a block without a language: sh is run, text is not", file, i+1)
			}
			if found := note.FindStringSubmatch(strings.TrimSpace(before)); found != nil {
				open.word, open.rest = found[1], found[2]
			}
		case open != nil && strings.TrimSpace(line) == "```":
			all = append(all, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
		before = line
	}
	if open != nil {
		return nil, fmt.Errorf("%s:%d: the block has no end", file, open.line)
	}
	return all, nil
}

// swapped exchanges c1 and c2 in a text. The example stays the same for both.
func swapped(text string) string {
	const example, kept = "deploy/example/c1", "deploy/example/\x00"
	text = clusterName.ReplaceAllStringFunc(strings.ReplaceAll(text, example, kept), func(name string) string {
		return map[string]string{"c1": "c2", "c2": "c1"}[name]
	})
	return strings.ReplaceAll(text, kept, example)
}

// TestBlocksOfDocuments checks that every block of the documents has a known kind.
func TestBlocksOfDocuments(t *testing.T) {
	for _, file := range commandDocuments {
		blocks := readBlocks(t, "../..", file)
		commands := slices.ContainsFunc(blocks, func(b block) bool { return b.language == "sh" && b.word != "not run" })
		if !commands {
			t.Errorf("%s has no commands to run", file)
		}
		for _, b := range blocks {
			if b.language != "sh" && regexp.MustCompile(`(?m)^\s*\$? ?(kubectl|semaphorectl) `).MatchString(b.text) {
				t.Errorf("%s:%d: commands in a block of language %s are not run", b.file, b.line, b.language)
			}
		}
	}
}

func readBlocks(t *testing.T, repo, file string) []block {
	t.Helper()
	text := testkit.Value(os.ReadFile(filepath.Join(repo, file)))(t)
	return testkit.Value(blocksOf(file, string(text)))(t)
}

// printed returns the one command of docs/install.md that begins so, for a test that runs it apart from the others.
func (b *documentsBed) printed(t *testing.T, begin string) string {
	t.Helper()
	var found []string
	for _, one := range readBlocks(t, b.repo, "docs/install.md") {
		for line := range strings.Lines(one.text) {
			if one.language == "sh" && one.word == "not run" && strings.HasPrefix(line, begin) {
				found = append(found, strings.TrimSpace(line))
			}
		}
	}
	if len(found) != 1 {
		t.Fatalf("docs/install.md has the commands %q that begin with %q, and are run apart; want one", found, begin)
	}
	return found[0]
}

// workloadsOfDocuments are the workloads that the documents assume in each cluster.
var workloadsOfDocuments = shopNamespace + echoes{name: "echo"}.yaml() + `
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: shop}
spec:
  selector: {app: echo}
  ports: [{name: http, port: 8080, targetPort: http}]
---
`

// documentsBed is c1 and c2, further clusters for some tests, and the working directory of a reader of the documents.
type documentsBed struct {
	*Scenario
	state testbed.State
	repo  string
	dir   string
	ran   int
}

// TestDocuments runs the commands of the documents as printed on two clusters. The README's commands connect the
// clusters. Then a third cluster joins and leaves, and check --traffic must find what is broken. After the removal, of
// the installation by commands and of the one by files, clusters and nodes are as before.
func TestDocuments(t *testing.T) {
	tier.OnlyAll(t, "TestFeatures runs the README's commands; docs/ checks names, flags and keys")
	ctx := needsBed(t)
	b := newDocumentsBed(ctx, t, "c3")
	b.startsNamed(ctx, t)
	before := testkit.Value(b.fingerprints(ctx))(t)
	maps.DeleteFunc(before, func(what string, _ fingerprint) bool { return strings.Contains(what, "c3") })

	step := func(name string, run func(context.Context, *testing.T)) {
		if !t.Failed() {
			t.Run(name, func(t *testing.T) { run(ctx, t) })
		}
	}
	sections := func(file string, names ...string) {
		for _, section := range names {
			step(strings.TrimSpace(file+" "+section), func(ctx context.Context, t *testing.T) { b.run(ctx, t, file, section) })
		}
	}
	asBefore := func(ctx context.Context, t *testing.T) { b.asBefore(ctx, t, before) }
	// Install with three commands, and remove.
	step("connected by commands", b.connects)
	step("a third cluster", b.third)
	step("traffic", b.testTraffic)
	step("unlinked", b.unlinks)
	sections("docs/install.md", "")
	step("as before, after uninstall", func(ctx context.Context, t *testing.T) {
		// docs/install.md installs the Multi-Cluster Services API, which is not semaphore's to remove.
		for _, c := range []*testbed.Cluster{b.c1, b.c2} {
			testkit.Value(c.Kubectl(ctx, nil, "delete", "customresourcedefinitions", "--ignore-not-found",
				"serviceexports.multicluster.x-k8s.io", "serviceimports.multicluster.x-k8s.io"))(t)
		}
		asBefore(ctx, t)
		b.syncFrequency(ctx, t, testbed.FastSync)
	})
	// Install with files, and remove.
	for _, file := range []string{"docs/overlays.md", "docs/services.md", "docs/sets.md", "docs/explain.md"} {
		sections(file, "")
	}
	sections("docs/removal.md", "One feature", "One remote", "All of it")
	step("as before, after removal", asBefore)
	t.Logf("%d blocks were run", b.ran)
}

func newDocumentsBed(ctx context.Context, t *testing.T, more ...string) *documentsBed {
	repo := testkit.Value(filepath.Abs("../.."))(t)
	options := testbed.Options{Progress: t.Output()}
	for _, name := range append([]string{"c1", "c2"}, more...) {
		options.Clusters = append(options.Clusters, testbed.ClusterSpec{Name: name, Nodes: 1})
	}
	tb := testkit.Value(testbed.Up(ctx, options))(t)
	t.Cleanup(func() { testkit.NoError(t, tb.Down()) })
	s := testkit.Value(New(tb, repo, func(what string) { t.Log(what) }))(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Diagnose(context.WithoutCancel(ctx)))
		}
	})
	b := &documentsBed{Scenario: s, repo: repo, dir: t.TempDir()}
	b.state = testkit.Value(testbed.Find(tb.ID))(t)
	must(t, os.CopyFS(filepath.Join(b.dir, "deploy"), os.DirFS(filepath.Join(repo, "deploy"))))
	for _, c := range tb.Clusters() {
		must(t, c.ApplyYAML(ctx, workloadsOfDocuments+workload("client", "app: client")))
	}
	for _, c := range tb.Clusters() {
		ready(ctx, t, c, "deployment/echo", "pod/client")
	}
	return b
}

// startsNamed starts the pods that documents name in their commands.
func (b *documentsBed) startsNamed(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, c := range b.tb.Clusters() {
		db := strings.Replace(workload("db-0", "app: db"), "sleep", "echo", 1)
		must(t, c.ApplyYAML(ctx, db+"---\n"+workload("web-7d9f", setLabel+": web")))
	}
	for _, c := range b.tb.Clusters() {
		ready(ctx, t, c, "pod/db-0", "pod/web-7d9f")
	}
}

// run runs the blocks of a document or of one of its sections.
func (b *documentsBed) run(ctx context.Context, t *testing.T, file, section string) {
	t.Helper()
	for _, one := range readBlocks(t, b.repo, file) {
		if section != "" && one.section != section {
			continue
		}
		if b.apart(one) {
			b.atOnce(ctx, t, one)
			continue
		}
		for _, c := range []*testbed.Cluster{b.c1, b.c2} {
			if t.Failed() {
				return
			}
			b.block(ctx, t, c, one)
		}
	}
}

// writtenFile matches the file to which a command redirects its output.
var writtenFile = regexp.MustCompile(`> *([\w./-]+)`)

// apart reports whether commands concern one cluster only and write only files named after it, so that they can run for
// both clusters at the same time.
func (b *documentsBed) apart(one block) bool {
	for _, found := range writtenFile.FindAllStringSubmatch(one.text, -1) {
		if !clusterName.MatchString(found[1]) {
			return false
		}
	}
	names := clusterName.FindAllString(one.text, -1)
	return one.language == "sh" && one.word != "after" && len(names) > 0 && !slices.Contains(names, "c2")
}

// atOnce runs one block for all clusters concurrently.
func (b *documentsBed) atOnce(ctx context.Context, t *testing.T, one block) {
	t.Helper()
	if t.Failed() {
		return
	}
	var all []*typed
	var g sync.WaitGroup
	for _, c := range []*testbed.Cluster{b.c1, b.c2} {
		if r := b.prepare(ctx, t, c, one); r != nil {
			all = append(all, r)
			g.Go(func() { r.run(ctx, b) })
		}
	}
	g.Wait()
	for _, r := range all {
		b.tell(t, r)
	}
}

// block runs one block for one cluster.
func (b *documentsBed) block(ctx context.Context, t *testing.T, c *testbed.Cluster, one block) {
	t.Helper()
	if r := b.prepare(ctx, t, c, one); r != nil {
		r.run(ctx, b)
		b.tell(t, r)
	}
}

// typed is the commands of a block for one cluster, with their result.
type typed struct {
	block  block
	of     *testbed.Cluster
	text   string
	codes  []int
	within time.Duration

	out  string
	took time.Duration
	err  error
}

// prepare does what precedes the commands of a block and returns the commands, or nil if none are to be run.
func (b *documentsBed) prepare(ctx context.Context, t *testing.T, c *testbed.Cluster, one block) *typed {
	t.Helper()
	text, rest := ownMachine(one.text), one.rest
	if c.Name == "c2" {
		text = swapped(text)
	}
	codes := []int{0}
	switch one.word {
	case "not run":
		return nil
	case "exit codes":
		codes = nil
		for _, word := range strings.Fields(rest) {
			code := testkit.Value(strconv.Atoi(word))(t)
			codes = append(codes, code)
		}
	case "file":
		if c.Name == "c2" {
			rest = swapped(rest)
		}
		path := filepath.Join(b.dir, rest)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
		return nil
	case "after":
		change, ok := changes[rest]
		if !ok {
			t.Fatalf("%s:%d: nobody knows how to make %q", one.file, one.line, rest)
		}
		change(ctx, t, b, c)
	}
	if one.language != "sh" {
		return nil
	}
	r := &typed{block: one, of: c, text: text, codes: codes}
	if one.word == "within" {
		r.within = testkit.Value(time.ParseDuration(rest))(t)
	}
	return r
}

func (r *typed) run(ctx context.Context, b *documentsBed) {
	began := time.Now()
	r.err = until(ctx, r.within, func() (err error) {
		r.out, err = b.commands(ctx, r.text, r.codes...)
		return err
	})
	r.took = time.Since(began)
}

// tell logs the result of commands.
func (b *documentsBed) tell(t *testing.T, r *typed) {
	t.Helper()
	if r.err != nil {
		t.Errorf("%s:%d, for %s: %v", r.block.file, r.block.line, r.of.Name, r.err)
		return
	}
	b.ran++
	t.Logf("%s:%d, for %s (%.1f s)\n%s%s", r.block.file, r.block.line, r.of.Name, r.took.Seconds(), r.text, r.out)
	if strings.Contains(r.text, "cp -r deploy/example") {
		b.ownValues(t, r.of)
	}
}

// shell runs commands that must succeed.
func (b *documentsBed) shell(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	testkit.Value(b.commands(ctx, text, 0))(t)
}

// commands runs commands in the working directory of a reader of the documents, with kubectl and the checkout's
// semaphorectl in PATH.
func (b *documentsBed) commands(ctx context.Context, text string, codes ...int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd, start, err := b.state.ShellCommand(ctx, "bash", "-euo", "pipefail", "-c", text)
	if err != nil {
		return "", err
	}
	for _, e := range slices.Backward(cmd.Env) {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			cmd.Env = append(cmd.Env, "PATH="+filepath.Join(b.repo, "bin")+":"+path)
			break
		}
	}
	var out bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = b.dir, &out, &out
	if err := start(); err != nil {
		return "", err
	}
	_ = cmd.Wait() // its exit code is the result
	if code := cmd.ProcessState.ExitCode(); !slices.Contains(codes, code) {
		return "", fmt.Errorf("exit code %d of\n%s\n%s", code, text, out.String())
	}
	return out.String(), nil
}

// inExample returns pairs of what the copied example c1 has of its own cluster, and what a cluster of the testbed has
// in its place.
func inExample(c *testbed.Cluster) []string {
	return []string{
		"10.1.0.0/16", c.PodCIDR.String(), "10.101.0.0/16", c.ServiceCIDR.String(), "192.0.2.8/29", c.NodeSubnet.String(),
		"# - ../../deploy/features/userspace-wireguard", "- ../../deploy/features/userspace-wireguard",
	}
}

// ownValues makes the changes to the copied example that docs/overlays.md asks for.
func (b *documentsBed) ownValues(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	other := b.c2
	if c == b.c2 {
		other = b.c1
	}
	values := strings.NewReplacer(append(inExample(c), "10.2.0.0/16", other.PodCIDR.String(),
		"192.0.2.16/28", other.NodeSubnet.String(), "192.0.2.21:", other.Nodes[0].IP.String()+":")...)
	if c == b.c2 {
		remotes := filepath.Join(b.dir, "overlay", c.Name, "remotes")
		must(t, os.Rename(filepath.Join(remotes, "c2.yaml"), filepath.Join(remotes, "c1.yaml")))
	}
	for _, name := range []string{"kustomization.yaml", "exporter.yaml", "broker.yaml", "remotes/" + other.Name +
		".yaml"} {
		file := filepath.Join(b.dir, "overlay", c.Name, name)
		text := testkit.Value(os.ReadFile(file))(t)
		own := string(text)
		if c == b.c2 {
			own = swapped(own)
		}
		must(t, os.WriteFile(file, []byte(values.Replace(own)), 0o644))
	}
}

// apply applies the overlay of a cluster as the documents describe, and waits for the parts.
func (b *documentsBed) apply(ctx context.Context, t *testing.T, c *testbed.Cluster) {
	t.Helper()
	b.shell(ctx, t, "kubectl --context "+c.Name+" apply -k overlay/"+c.Name)
}

// changes are the changes that a document describes in words, before the commands that follow.
var changes = map[string]func(context.Context, *testing.T, *documentsBed, *testbed.Cluster){
	"features without services":   only("encryption, policy"),
	"features without policy":     only("encryption, services"),
	"features without encryption": only("services, policy"),
	"all features":                only("encryption, services, policy"),
	"nothing is left of the remote": func(ctx context.Context, t *testing.T, b *documentsBed, c *testbed.Cluster) {
		t.Helper()
		gone := map[string]string{"c1": "c2", "c2": "c1"}[c.Name]
		must(t, until(ctx, settle, func() error {
			left, err := b.ofRemote(ctx, c, gone)
			if err == nil && left != "" {
				err = fmt.Errorf("%s has of %s still:\n%s", c.Name, gone, left)
			}
			return err
		}))
	},
}

// only restricts a cluster's configuration to some features, and waits until broker and exporter run with it.
func only(features string) func(context.Context, *testing.T, *documentsBed, *testbed.Cluster) {
	return func(ctx context.Context, t *testing.T, b *documentsBed, c *testbed.Cluster) {
		t.Helper()
		must(t, restrict(filepath.Join(b.dir, "overlay", c.Name), features))
		b.apply(ctx, t, c)
		for _, part := range []string{"broker", "exporter"} {
			b.shell(ctx, t, "kubectl --context "+c.Name+" -n semaphore rollout status --timeout=3m deployment/semaphore-"+part)
		}
	}
}

var (
	featuresLine = regexp.MustCompile(`(?m)^features: .*\n`)
	// ownBroker is the own cluster in localBroker, which needs the feature services; unused is the same as a comment.
	ownBroker = regexp.MustCompile(`(?m)^localBroker:.*\n(?: .*\n)+`)
	unused    = regexp.MustCompile(`(?m)^#unused (.*\n)`)
)

// restrict writes features into the files of an overlay, and takes out of them what needs other ones.
func restrict(overlay, features string) error {
	for _, name := range []string{"exporter.yaml", "broker.yaml"} {
		file := filepath.Join(overlay, name)
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		text := unused.ReplaceAllString(featuresLine.ReplaceAllString(string(data), ""), "$1")
		if !strings.Contains(features, "services") {
			text = ownBroker.ReplaceAllStringFunc(text, func(block string) string {
				return strings.TrimSuffix(regexp.MustCompile(`(?m)^`).ReplaceAllString(block, "#unused "), "#unused ")
			})
		}
		if err := os.WriteFile(file, []byte("features: ["+features+"]\n"+text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// TestRestrict: the parts accept the files of the example with fewer features, and with all of them again.
func TestRestrict(t *testing.T) {
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS("../../deploy/example/c1")))
	read := func(name string) string {
		text := testkit.Value(os.ReadFile(filepath.Join(dir, name)))(t)
		return string(text)
	}
	const all = "encryption, services, policy"
	whole := "features: [" + all + "]\n" + read("exporter.yaml")
	for _, features := range []string{"encryption, policy", "encryption, services", "services, policy", "policy", all} {
		must(t, restrict(dir, features))
		if _, err := config.Parse[config.Exporter]([]byte(read("exporter.yaml") + "cluster: c1\n")); err != nil {
			t.Errorf("the exporter, with %s: %v", features, err)
		}
		if _, err := config.Parse[config.Broker]([]byte(read("broker.yaml") + "cluster: c1\n")); err != nil {
			t.Errorf("the broker, with %s: %v", features, err)
		}
	}
	if got := read("exporter.yaml"); got != whole {
		t.Errorf("with all features again:\n%s\nwant\n%s", got, whole)
	}
}

// ofRemote returns the mirrors, sets and pools that a cluster has for a remote.
func (b *documentsBed) ofRemote(ctx context.Context, c *testbed.Cluster, remote string) (string, error) {
	out, err := c.Kubectl(ctx, nil, "get",
		"services,endpointslices,globalnetworksets.crd.projectcalico.org,ippools.crd.projectcalico.org",
		"-A", "-l", "app.kubernetes.io/managed-by=semaphore-broker", "-o", "name")
	if err != nil {
		return "", err
	}
	var left []string
	for name := range strings.Lines(out) {
		if _, object, _ := strings.Cut(name, "/"); strings.HasPrefix(object, remote+"-") ||
			strings.Contains(object, "pods-of-"+remote) {
			left = append(left, strings.TrimSpace(name))
		}
	}
	return strings.Join(left, "\n"), nil
}

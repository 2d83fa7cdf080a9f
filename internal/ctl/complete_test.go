package ctl

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestCompletion: the shell offers names of contexts, clusters, nodes, sets and drains, as cobra's scripts ask for
// them.
func TestCompletion(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	must(t, os.WriteFile(kubeconfig,
		[]byte("apiVersion: v1\nkind: Config\ncontexts:\n- {name: c2, context: {}}\n- {name: c1, context: {}}\n"), 0o600))
	broker := debug.NewRecorder("broker", "c1", "")
	socket := serve(t, broker, func() *semaphorev1.GetStatusResponse {
		s := well()
		s.Links = append(s.Links, &semaphorev1.LinkStatus{Cluster: "c1"},
			&semaphorev1.LinkStatus{Cluster: "c3",
				Kinds: []*semaphorev1.KindStatus{{Kind: semaphorev1.Kind_KIND_SERVICE, HeldBack: 7}}})
		s.Drains = []*semaphorev1.DrainStatus{
			{Target: &semaphorev1.DrainTarget{Cluster: "c4"}, Since: timestamppb.New(time.Now())},
			{Target: &semaphorev1.DrainTarget{Cluster: "c2", Namespace: "shop", Service: "echo"},
				Since: timestamppb.New(time.Now())},
		}
		return s
	})
	withSets := brokerWith(t, func(*semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		return []*semaphorev1.PolicySet{webSet()}, nil
	})
	for _, test := range []struct{ args, want string }{
		{"status --kubeconfig " + kubeconfig + " --context ", "c1 c2"},
		{"status --kubeconfig " + kubeconfig + " --context c1 --context ", "c2"},
		{"status -o ", "table wide json yaml"},
		{"status --part ", "exporter broker"},
		{"drain cluster --socket " + socket + " ", "c2 c3"},
		{"undrain cluster --socket " + socket + " ", "c4"},
		{"undrain service --socket " + socket + " ", "c2:shop/echo"},
		{"brake release --socket " + socket + " ", "c3"},
		{"brake release --kind ", "node service endpointslice setmember"},
		{"rotate-key --socket " + socket + " --node ", "n1"},
		{"rotate-key --socket " + socket + " --remote ", "c2 c3"},
		{"policy --socket " + withSets + " ", "c2/shop/web"},
		{"explain --socket " + withSets + " --from ", "c2/shop/web-1 c2/shop/web-2"},
		{"drain cluster --socket /nowhere ", ""},
	} {
		out, code, err := run(t, append([]string{"__complete"}, strings.Split(test.args, " ")...)...)
		if code != 0 {
			t.Errorf("%s: %v", test.args, err)
		}
		var names []string
		for line := range strings.Lines(out) {
			if name := strings.TrimSpace(line); !strings.HasPrefix(name, ":") {
				names = append(names, name)
			}
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("%s: %q, want %q", test.args, got, test.want)
		}
	}
}

// TestFormats: each verb that prints a table prints JSON and YAML too, each that prints text prints JSON, and the shell
// offers the formats of each.
func TestFormats(t *testing.T) {
	seen := map[string]bool{}
	for _, cmd := range all(Command()) {
		f := cmd.Flags().Lookup("output")
		if f == nil || cmd.Name() == "render" { // there it is a directory
			continue
		}
		seen[f.DefValue] = true
		verb := strings.TrimPrefix(cmd.CommandPath(), "semaphorectl ")
		out, code, err := run(t, append([]string{"__complete"}, append(strings.Fields(verb), "-o", "")...)...)
		if code != 0 {
			t.Errorf("%s: %v", verb, err)
		}
		offered := strings.Fields(out)
		want := map[string][]string{"table": {"table", "json", "yaml"}, "text": {"text", "json"}, "": {"json", "yaml"},
			"svg": {"svg", "dot", "mermaid"}}[f.DefValue]
		if want == nil {
			t.Errorf("%s: unknown default %q", verb, f.DefValue)
		}
		for _, format := range want {
			if !slices.Contains(offered, format) {
				t.Errorf("%s: the shell offers %v, and not %s", verb, offered, format)
			}
		}
	}
	if !seen["table"] || !seen["text"] || !seen[""] {
		t.Errorf("defaults %v", seen)
	}
}

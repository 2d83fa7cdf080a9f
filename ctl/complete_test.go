package ctl

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestCompletion: the shell offers names of contexts, clusters, nodes, sets and drains, as cobra's scripts ask for
// them.
func TestCompletion(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	must(t, os.WriteFile(kubeconfig,
		[]byte("apiVersion: v1\nkind: Config\ncontexts:\n- {name: c2, context: {}}\n- {name: c1, context: {}}\n"), 0o600))
	broker := debug.NewRecorder("broker", "c1", "")
	locate := func(_ context.Context, req *semaphorev1.LocateRequest) (*semaphorev1.LocateResponse, error) {
		of, out := req.GetObject(), &semaphorev1.LocateResponse{}
		for _, place := range []*semaphorev1.Place{
			{Cluster: "c2", Object: "node n1"}, {Cluster: "c2", Object: "node n2"}, {Cluster: "c3", Object: "node n3"},
			{Cluster: "c2", Object: "service shop/echo"}, {Cluster: "c3", Object: "service shop/echo"},
			{Cluster: "c3", Object: "service shop/pay"}, {Cluster: "c3", Object: "service other/echo"},
			// No broker accepts such names; one that was taken over may send them.
			{Cluster: "c2", Object: "node n1$(reboot)"}, {Cluster: "c2", Object: "node n1;reboot"},
			{Cluster: "c2", Object: "node n1\x1b[2J"}, {Cluster: "c2", Object: "node n1\u202e"},
			{Cluster: "c2", Object: "node n1\treboot"}, {Cluster: "c2", Object: "node n1\nreboot"}, {Cluster: "c2"},
		} {
			kind, name, _ := strings.Cut(place.Object, " ")
			like := of.GetName()
			if of.GetNamespace() != "" {
				like = of.GetNamespace() + "/" + like
			}
			if wanted, _ := semaphorev1.KindOf(kind); wanted == of.GetKind() && place.Cluster == req.GetCluster() &&
				strings.HasPrefix(name, like) {
				place.Hop, place.State = debug.HopAccept, debug.PlaceDone
				out.Places = append(out.Places, place)
			}
		}
		return out, nil
	}
	socket := ctltest.ServeAnswers(t, broker, func() *semaphorev1.GetStatusResponse {
		s := ctltest.Well()
		s.Links = append(s.Links, &semaphorev1.LinkStatus{Cluster: "c1"},
			&semaphorev1.LinkStatus{Cluster: "c3",
				Kinds: []*semaphorev1.KindStatus{{Kind: semaphorev1.Kind_KIND_SERVICE, Retained: 7}}})
		s.Drains = []*semaphorev1.DrainStatus{
			{Target: &semaphorev1.DrainTarget{Cluster: "c4"}, Since: timestamppb.New(time.Now())},
			{Target: &semaphorev1.DrainTarget{Cluster: "c2", Namespace: "shop", Service: "echo"},
				Since: timestamppb.New(time.Now())},
		}
		return s
	}, debug.Answers{Locate: locate})
	withSets := ctltest.BrokerWith(t, func(*semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		return []*semaphorev1.PolicySet{ctltest.WebSet()}, nil
	})
	for _, test := range []struct{ args, want string }{
		{"status --kubeconfig " + kubeconfig + " --context ", "c1 c2"},
		{"status --kubeconfig " + kubeconfig + " --context c1 --context ", "c2"},
		{"status -o ", "table wide json yaml svg dot mermaid"},
		{"status --part ", "exporter broker"},
		{"drain cluster --socket " + socket + " ", "c2 c3"},
		{"drain node --socket " + socket + " ", "c1/ c2/ c3/"},
		{"drain node --socket " + socket + " c1/", "c1/n1"},
		{"drain node --socket " + socket + " c2/n", "c2/n1 c2/n2"},
		{"drain node --socket " + socket + " c2/n2", "c2/n2"},
		{"drain node --socket " + socket + " c2/n2 ", ""},
		{"drain service --socket " + socket + " ", "c2: c3: other/echo shop/echo shop/pay"},
		{"drain service --socket " + socket + " shop/e", "shop/echo"},
		{"drain service --socket " + socket + " c3:", "c3:other/echo c3:shop/echo c3:shop/pay"},
		{"drain service --socket " + socket + " c3:shop/", "c3:shop/echo c3:shop/pay"},
		{"undrain cluster --socket " + socket + " ", "c4"},
		{"undrain service --socket " + socket + " ", "c2:shop/echo"},
		{"release --socket " + socket + " ", "c3"},
		{"release --kind ", "node service endpointslice setmember"},
		{"rotate-key --socket " + socket + " --node ", "n1"},
		{"rotate-key --socket " + socket + " --remote ", "c2 c3"},
		{"get sets --socket " + withSets + " ", "c2/shop/web"},
		{"explain --socket " + withSets + " --from ", "c2/shop/web-1 c2/shop/web-2"},
		{"drain cluster --socket /nowhere ", ""},
	} {
		out, code, err := ctltest.Run(t, append([]string{"__complete"}, strings.Split(test.args, " ")...)...)
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
		out, code, err := ctltest.Run(t, append([]string{"__complete"}, append(strings.Fields(verb), "-o", "")...)...)
		if code != 0 {
			t.Errorf("%s: %v", verb, err)
		}
		offered := strings.Fields(out)
		want := map[string][]string{"table": {"table", "json", "yaml"}, "text": {"text", "json"},
			"": {"json", "yaml"}}[f.DefValue]
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

// TestArgumentsAreCompleted: the shell completes the argument of each verb that has one, but for IPs and files.
func TestArgumentsAreCompleted(t *testing.T) {
	argument := regexp.MustCompile(`^[a-z-]+ \[?[A-Z]`)
	found := 0
	for _, cmd := range all(Command()) {
		verb := strings.TrimPrefix(cmd.CommandPath(), "semaphorectl ")
		if !cmd.Runnable() || cmd.Hidden || !argument.MatchString(cmd.Use) ||
			slices.Contains([]string{"get ip", "migrate", "bundle"}, verb) {
			continue
		}
		if found++; cmd.ValidArgsFunction == nil {
			t.Errorf("%s: nothing completes its argument", cmd.UseLine())
		}
	}
	if found < 11 {
		t.Errorf("only %d verbs have an argument", found)
	}
}

package status

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestNoEscapeSequencesReachATerminal: hostile text of a remote reaches no terminal unchanged, in any output format,
// and programs read the original from the JSON.
func TestNoEscapeSequencesReachATerminal(t *testing.T) {
	// evil has CSI as C1 control, an escape sequence, a line end, a right-to-left override, a tag character, a byte
	// order mark, and a zero-width space.
	const evil = "a\u009b2J\x1b[2J\nb\u202ec\U000e0041\ufeff\u200bd"
	status := &semaphorev1.GetStatusResponse{
		Part: "broker", Cluster: "c1", Problems: []string{evil},
		Links: []*semaphorev1.LinkStatus{{Cluster: evil, LastError: evil}},
	}
	watched := &semaphorev1.WatchResponse{
		Message: &semaphorev1.WatchResponse_Event{Event: &semaphorev1.Event{Part: "broker", Object: evil}},
	}
	sets := &fleet.BrokerSets{Cluster: "c1", Sets: []*semaphorev1.PolicySet{{Cluster: "c2", Name: evil}}}
	outputs := map[string]func(*bytes.Buffer) error{
		"sets json":    func(b *bytes.Buffer) error { return printSetsAs(b, sets, "json") },
		"sets yaml":    func(b *bytes.Buffer) error { return printSetsAs(b, sets, "yaml") },
		"status table": func(b *bytes.Buffer) error { return printStatus(b, status, "table") },
		"status json":  func(b *bytes.Buffer) error { return printStatus(b, status, "json") },
		"status yaml":  func(b *bytes.Buffer) error { return printStatus(b, status, "yaml") },
		"watch json":   func(b *bytes.Buffer) error { return show.PrintJSON(b, watched) },
		"watch text":   func(b *bytes.Buffer) error { return new(show.Columns).Print(b, watched) },
		"check json": func(b *bytes.Buffer) error {
			return show.PrintDocument(b,
				ctltest.Must1(json.Marshal(map[string]any{"findings": []show.Finding{{Subject: evil}}})),
				"json")
		},
	}
	for name, print := range outputs {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			must(t, print(&b))
			for _, r := range b.String() {
				if !unicode.IsPrint(r) && r != '\n' {
					t.Errorf("%q has %U", b.String(), r)
				}
			}
			switch {
			case name == "status json":
				var read semaphorev1.GetStatusResponse
				if err := protojson.Unmarshal(b.Bytes(), &read); err != nil || read.GetProblems()[0] != evil ||
					read.GetLinks()[0].GetLastError() != evil {
					t.Errorf("%v: read as %v", err, &read)
				}
			case strings.HasSuffix(name, "yaml"):
				var read map[string]any
				if err := yaml.UnmarshalStrict(b.Bytes(), &read); err != nil || read["cluster"] != "c1" {
					t.Errorf("%v: read as %v", err, read)
				}
			}
		})
	}
}

package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestStatusOf checks the conditions and numbers of a RemoteCluster for each state of its link.
func TestStatusOf(t *testing.T) {
	accepted := remotes.Verdict{InEffect: &remotes.Object{ListenPort: 7974}, Reason: finding.Accepted, Message: "m"}
	heard := timestamppb.New(time.Unix(1000, 5))
	kind := func(k semaphorev1.Kind, objects, refused, held uint64) *semaphorev1.KindStatus {
		return &semaphorev1.KindStatus{Kind: k, Objects: objects, Refused: refused, Retained: held}
	}
	complete := []*semaphorev1.KindStatus{{Kind: semaphorev1.Kind_KIND_SERVICE, Complete: true},
		{Kind: semaphorev1.Kind_KIND_SET_MEMBER}} // a kind that its exporter does not export is never complete
	for _, c := range []struct {
		name    string
		verdict remotes.Verdict
		link    *semaphorev1.LinkStatus
		want    string
		message string
	}{
		{"nothing is accepted from it", accepted, nil, "Ready=True/Ready " +
			"Accepted=True/Accepted Connected=False/NothingTaken port 7974",
			"podSubnets"},
		{"not in effect", remotes.Verdict{Reason: "Invalid", Message: "no"}, nil,
			"Ready=False/Invalid " +
				"Accepted=False/Invalid Connected=False/NotInEffect port 0", "not in effect"},
		{"connected", accepted, &semaphorev1.LinkStatus{Connected: true, Address: "192.0.2.1:7", LastHeard: heard,
			Kinds: complete},
			"Ready=True/Ready " +
				"Accepted=True/Accepted Connected=True/Connected Healthy=True/Healthy port 7974 heard 1000 {0 0 0 0} 0 0",
			"from 192.0.2.1:7"},
		{"connected, and has sent nothing", accepted, &semaphorev1.LinkStatus{Connected: true, LastHeard: heard,
			Kinds: complete[1:]},
			"Ready=Unknown/NotReported Accepted=True/Accepted Connected=True/Connected Healthy=Unknown/NotReported " +
				"port 7974 heard 1000 {0 0 0 0} 0 0", ""},
		{"never connected", accepted, &semaphorev1.LinkStatus{LastError: "no route"},
			"Ready=False/NeverConnected " +
				"Accepted=True/Accepted Connected=False/NeverConnected Healthy=Unknown/NeverConnected port 7974 {0 0 0 0} 0 0",
			"not connected yet: no route"},
		{"never connected, and another cluster is refused", accepted, &semaphorev1.LinkStatus{RefusedSourceId: "u"},
			"Ready=False/NeverConnected " +
				"Accepted=True/Accepted Connected=False/NeverConnected Healthy=False/SourceRefused port 7974 {0 0 0 0} 0 0", ""},
		{"disconnected", accepted, &semaphorev1.LinkStatus{LastHeard: heard, LastError: strings.Repeat("e", 600),
			Kinds: complete},
			"Ready=False/Disconnected " +
				"Accepted=True/Accepted Connected=False/Disconnected Healthy=True/Healthy port 7974 heard 1000 {0 0 0 0} 0 0",
			"what it exported stays: " + strings.Repeat("e", 509) + "…"},
		{"objects are refused", accepted, &semaphorev1.LinkStatus{Connected: true, Kinds: []*semaphorev1.KindStatus{
			kind(semaphorev1.Kind_KIND_NODE, 1, 1, 0), kind(semaphorev1.Kind_KIND_SERVICE, 2, 4, 0),
			kind(semaphorev1.Kind_KIND_ENDPOINT_SLICE, 3, 0, 0), kind(semaphorev1.Kind_KIND_SET_MEMBER, 4, 0, 0)}},
			"Ready=False/Refused " +
				"Accepted=True/Accepted Connected=True/Connected Healthy=False/Refused port 7974 {1 2 3 4} 5 0", ""},
		{"the brake precedes a refusal", accepted, &semaphorev1.LinkStatus{Connected: true,
			Kinds: []*semaphorev1.KindStatus{kind(semaphorev1.Kind_KIND_NODE, 1, 2, 3)}},
			"Ready=False/Retained " +
				"Accepted=True/Accepted Connected=True/Connected Healthy=False/Retained port 7974 {1 0 0 0} 2 3", ""},
		{"another cluster is refused", accepted, &semaphorev1.LinkStatus{Connected: true, RefusedSourceId: "uid\n2",
			Kinds: []*semaphorev1.KindStatus{kind(semaphorev1.Kind_KIND_NODE, 1, 2, 3)}},
			"Ready=False/SourceRefused " +
				"Accepted=True/Accepted Connected=True/Connected Healthy=False/SourceRefused port 7974 {1 0 0 0} 2 3", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := StatusOf(remotes.Object{Generation: 3}, c.verdict, c.link)
			var got []string
			for _, x := range s.Conditions {
				got = append(got, fmt.Sprintf("%s=%s/%s", x.Type, x.Status, x.Reason))
				if x.ObservedGeneration != 3 {
					t.Errorf("%s is of the generation %d", x.Type, x.ObservedGeneration)
				}
			}
			if s.ObservedGeneration != 3 {
				t.Errorf("the observed generation is %d", s.ObservedGeneration)
			}
			got = append(got, fmt.Sprintf("port %d", s.ListenPort))
			if s.LastHeard != nil {
				got = append(got, fmt.Sprintf("heard %d", s.LastHeard.Unix()))
			}
			if s.Objects != nil {
				got = append(got, fmt.Sprint(*s.Objects, s.Refused, s.Retained))
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("it is\n%s, wanted\n%s", text, c.want)
			}
			if m := s.Conditions[2].Message; !strings.Contains(m, c.message) || strings.Contains(m, strings.Repeat("e", 513)) {
				t.Errorf("the message is %q", m)
			}
		})
	}
}

// TestReady: Ready is true if all that the spec names works, false if something is known not to, and unknown, never
// true, while the exporter has not reported about this generation.
func TestReady(t *testing.T) {
	accepted := remotes.Verdict{InEffect: &remotes.Object{}, Reason: finding.Accepted, Message: "m"}
	never, connected := &semaphorev1.LinkStatus{}, &semaphorev1.LinkStatus{Connected: true,
		Kinds: []*semaphorev1.KindStatus{{Complete: true}}}
	exporting := func(status metav1.ConditionStatus, generation int64, reason string) []metav1.Condition {
		return []metav1.Condition{{Type: "Exporting", Status: status, ObservedGeneration: generation, Reason: reason,
			Message: "the exporter's"}}
	}
	for name, c := range map[string]struct {
		broker   bool
		verdict  remotes.Verdict
		link     *semaphorev1.LinkStatus
		reported []metav1.Condition
		want     string
	}{
		"both ways": {true, accepted, connected, exporting("True", 3, "Connected"), "True/Ready " +
			"the spec is in effect, the clusters are connected, and no object is refused or retained"},
		"only imported":             {false, accepted, connected, nil, "True/Ready"},
		"only exported":             {true, accepted, nil, exporting("True", 3, "Connected"), "True/Ready"},
		"no exporter has reported":  {true, accepted, connected, nil, "Unknown/NotReported Exporting: the exporter of this"},
		"reported of the last spec": {true, accepted, connected, exporting("True", 2, "Connected"), "Unknown/NotReported"},
		"a failure of the last spec": {true, accepted, connected, exporting("False", 2, "Disconnected"),
			"Unknown/NotReported"},
		"not exporting": {true, accepted, connected, exporting("False", 3, "Disconnected"),
			"False/Disconnected Exporting: the"},
		"known and not":   {true, accepted, never, nil, "False/NeverConnected Connected: the exporter of the remote"},
		"unknown to them": {true, accepted, connected, exporting("Unknown", 3, "X"), "Unknown/X"},
		"the first counts": {true, remotes.Verdict{Reason: finding.PortConflict, Message: "taken"}, nil,
			exporting("False", 3, "NotInEffect"), "False/PortConflict Accepted: taken"},
	} {
		t.Run(name, func(t *testing.T) {
			o := remotes.Object{Generation: 3, Status: v1alpha1.RemoteClusterStatus{Conditions: c.reported}}
			if c.broker {
				o.Spec.Broker = &v1alpha1.Broker{}
			}
			all := StatusOf(o, c.verdict, c.link).Conditions
			got := fmt.Sprintf("%s/%s %s", all[0].Status, all[0].Reason, all[0].Message)
			if all[0].Type != "Ready" || !strings.HasPrefix(got, c.want) {
				t.Errorf("%s is %s, want %s", all[0].Type, got, c.want)
			}
		})
	}
}

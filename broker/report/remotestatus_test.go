package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestStatusOf checks the conditions and numbers of a RemoteCluster for each state of its link.
func TestStatusOf(t *testing.T) {
	accepted := remotes.Verdict{InEffect: &remotes.Object{ListenPort: 7974}, Reason: finding.Accepted, Message: "m"}
	heard := timestamppb.New(time.Unix(1000, 5))
	kind := func(k semaphorev1.Kind, objects, refused, held uint64) *semaphorev1.KindStatus {
		return &semaphorev1.KindStatus{Kind: k, Objects: objects, Refused: refused, HeldBack: held}
	}
	for _, c := range []struct {
		name    string
		verdict remotes.Verdict
		link    *semaphorev1.LinkStatus
		want    string
		message string
	}{
		{"nothing is accepted from it", accepted, nil, "Accepted=True/Accepted Connected=False/NothingTaken port 7974",
			"podSubnets"},
		{"not in effect", remotes.Verdict{Reason: "Invalid", Message: "no"}, nil,
			"Accepted=False/Invalid Connected=False/NotInEffect port 0", "not in effect"},
		{"connected", accepted, &semaphorev1.LinkStatus{Connected: true, Address: "192.0.2.1:7", LastHeard: heard},
			"Accepted=True/Accepted Connected=True/Connected Healthy=True/Healthy port 7974 heard 1000 {0 0 0 0} 0 0",
			"from 192.0.2.1:7"},
		{"never connected", accepted, &semaphorev1.LinkStatus{LastError: "no route"},
			"Accepted=True/Accepted Connected=False/NeverConnected Healthy=True/Healthy port 7974 {0 0 0 0} 0 0",
			"not connected yet: no route"},
		{"disconnected", accepted, &semaphorev1.LinkStatus{LastHeard: heard, LastError: strings.Repeat("e", 600)},
			"Accepted=True/Accepted Connected=False/Disconnected Healthy=True/Healthy port 7974 heard 1000 {0 0 0 0} 0 0",
			"what it exported stays: " + strings.Repeat("e", 509) + "…"},
		{"objects are refused", accepted, &semaphorev1.LinkStatus{Connected: true, Kinds: []*semaphorev1.KindStatus{
			kind(semaphorev1.Kind_KIND_NODE, 1, 1, 0), kind(semaphorev1.Kind_KIND_SERVICE, 2, 4, 0),
			kind(semaphorev1.Kind_KIND_ENDPOINT_SLICE, 3, 0, 0), kind(semaphorev1.Kind_KIND_SET_MEMBER, 4, 0, 0)}},
			"Accepted=True/Accepted Connected=True/Connected Healthy=False/Refused port 7974 {1 2 3 4} 5 0", ""},
		{"the brake precedes a refusal", accepted, &semaphorev1.LinkStatus{Connected: true,
			Kinds: []*semaphorev1.KindStatus{kind(semaphorev1.Kind_KIND_NODE, 1, 2, 3)}},
			"Accepted=True/Accepted Connected=True/Connected Healthy=False/Retained port 7974 {1 0 0 0} 2 3", ""},
		{"another cluster is refused", accepted, &semaphorev1.LinkStatus{Connected: true, RefusedSourceId: "uid\n2",
			Kinds: []*semaphorev1.KindStatus{kind(semaphorev1.Kind_KIND_NODE, 1, 2, 3)}},
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
			if m := s.Conditions[1].Message; !strings.Contains(m, c.message) || strings.Contains(m, strings.Repeat("e", 513)) {
				t.Errorf("the message is %q", m)
			}
		})
	}
}

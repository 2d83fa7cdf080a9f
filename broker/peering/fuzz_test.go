package peering

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// FuzzReceive has an agent say anything, in turns with changes of the state: nothing panics, a refusal is the
// agent's fault by its code, what is remembered is bounded, and every message out can be decoded.
func FuzzReceive(f *testing.F) {
	had := meshOf("c2", "a 1", "b 2")
	delimited := func(messages ...*semaphorev1.AttachRequest) []byte {
		var b bytes.Buffer
		for _, m := range messages {
			if m == nil { // the state changes
				b.WriteByte(0)
				continue
			}
			testkit.Value(protodelim.MarshalTo(&b, m))(f)
		}
		return b.Bytes()
	}
	report := players.Report(&semaphorev1.DeviceReport{Cluster: "c2", Interface: "wireguard.c2",
		PublicKey: make([]byte, 32), ListenPort: 1, Problem: "é"}, &semaphorev1.DeviceReport{Cluster: "c9"})
	applied := players.Applied(3)
	token := &semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Token{Token: &semaphorev1.Token{Token: "t"}}}
	f.Add(delimited(hello(&semaphorev1.AgentHello{}), report, nil, applied, nil, token))
	f.Add(delimited(nil, hello(&semaphorev1.AgentHello{Held: []*semaphorev1.HeldCluster{digestOf("c2", had)}}), report))
	f.Add(delimited(hello(&semaphorev1.AgentHello{ResumeEpoch: "E", ResumeRevision: 1 << 63,
		Held: []*semaphorev1.HeldCluster{digestOf("c2", had), digestOf("c3", had)}}), nil, nil, nil))
	f.Add(delimited(report, applied, token, &semaphorev1.AttachRequest{}))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := NewState()
		session := s.Open("c1", "n1", remotes)
		updates := 0
		for r := bytes.NewReader(data); r.Len() > 0; {
			m := &semaphorev1.AttachRequest{}
			if err := protodelim.UnmarshalFrom(r, m); err != nil {
				return
			}
			if proto.Size(m) == 0 {
				switch updates++; updates % 3 {
				case 1:
					become(s, "c2", had, nil)
				case 2:
					become(s, "c3", meshOf("c3", fmt.Sprint("z ", updates)), nil)
				default:
					become(s, "c2", meshOf("c2", fmt.Sprint("a ", updates)), nil)
				}
			} else {
				received, err := session.Receive(m)
				if err != nil && status.Code(err) != codes.InvalidArgument {
					t.Fatalf("%v: %v", m, err)
				}
				if err != nil {
					return // which ends the stream
				}
				if received.Report != nil {
					if _, err := proto.Marshal(&semaphorev1.NodeStatus{Problems: received.Report.Problems}); err != nil {
						t.Fatalf("%v cannot be reported: %v", m, err)
					}
					for cluster := range received.Report.Tunnels {
						if !remotes[cluster] {
							t.Fatalf("a tunnel to %q", cluster)
						}
					}
				}
			}
			if len(session.foreign) > maxDevices || len(session.held) > len(remotes) || session.Applied() > s.journal.Head() {
				t.Fatalf("%d foreign, %d held, applied %d of %d", len(session.foreign), len(session.held), session.Applied(),
					s.journal.Head())
			}
			said(t, session)
		}
	})
}

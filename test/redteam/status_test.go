package redteam

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// maxStatus is the maximum size of a status for semaphorectl, the default of gRPC.
const maxStatus = 4 << 20

// TestStatusStaysSmall checks that `semaphorectl status` works and names problems of each remote and agent, however
// much remotes have refused and agents of 60 nodes report.
func TestStatusStaysSmall(t *testing.T) {
	const nodes = 60
	v := start(t)
	long := strings.Repeat("x", 63)
	for _, cluster := range []string{"c2", "c3"} {
		var all []*semaphorev1.Object
		for i := range 2000 {
			o := service(fmt.Sprintf("s%04d-%s", i, long[:57]), 1)
			o.Key.Namespace = long
			if i%2 == 0 {
				o.GetService().Ports[0].Protocol = strings.Repeat("y", 200)
			}
			all = append(all, o)
		}
		for i := range 500 {
			all = append(all, node(cluster, fmt.Sprintf("n%03d-%s", i, strings.Repeat("z", 240)), 1, "8.8.8.0/24",
				strings.Repeat("9", 100)))
		}
		_, refused := v.sends(cluster, "e1", 5000, []semaphorev1.Kind{nodeKind, serviceKind}, all...)
		if len(refused) < 1000 {
			t.Fatalf("%d of %s are refused", len(refused), cluster)
		}
	}
	report := &semaphorev1.AgentReport{}
	for range 64 {
		report.Problems = append(report.Problems, strings.Repeat("p", 512))
	}
	for i := range 256 {
		report.Devices = append(report.Devices, &semaphorev1.DeviceReport{Cluster: fmt.Sprint("d", i),
			Interface: strings.Repeat("i", 64), Problem: strings.Repeat("d", 512)})
	}
	ended := make(chan string, nodes) // why agents' streams have ended
	for i := range nodes {
		token := v.agentToken(fmt.Sprintf("n%02d", i), fmt.Sprintf("198.51.100.%d", i+1))
		s := testkit.Value(open(t, v.dialPeering(), attachMethod, token))(t)
		for _, m := range []*semaphorev1.AttachRequest{
			players.AgentHello(&semaphorev1.AgentHello{}),
			{Message: &semaphorev1.AttachRequest_Report{Report: report}},
		} {
			if err := s.call.SendMsg(encode(t, m)); err != nil {
				t.Fatalf("agent %d: %v", i, err)
			}
		}
		go func() {
			for {
				var data []byte
				if err := s.call.RecvMsg(&data); err != nil {
					ended <- fmt.Sprintf("that of agent %d ended: %v", i, err)
					return
				}
			}
		}()
	}
	var ends []string
	conn, err := grpc.NewClient("unix://"+v.path("broker.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	testkit.Must(t, err)
	defer conn.Close()
	var status *semaphorev1.GetStatusResponse
	v.eventually("all agents have reported", func() (err error) {
		status, err = semaphorev1.NewDebugServiceClient(conn).GetStatus(t.Context(), &semaphorev1.GetStatusRequest{},
			grpc.MaxCallRecvMsgSize(64<<20))
		n := 0
		for _, node := range status.GetNodes() {
			if len(node.GetProblems()) > 0 && node.GetDevices() == 256 {
				n++
			}
		}
		for len(ended) > 0 {
			ends = append(ends, <-ended)
		}
		if err == nil && n < nodes {
			err = fmt.Errorf("%d of %d nodes; of their streams: %q", n, nodes, ends)
		}
		return err
	})
	ofNodes := 0
	for _, node := range status.GetNodes() {
		ofNodes += proto.Size(node)
	}
	t.Logf("the status has %d bytes, %d of them those of %d nodes, and %d lines of problems", proto.Size(status), ofNodes,
		nodes, len(status.GetProblems()))
	if proto.Size(status) > maxStatus {
		t.Errorf("the status has %d bytes; %d is the most", proto.Size(status), maxStatus)
	}
	bins := testkit.Value(programs())(t)
	out, err := exec.CommandContext(t.Context(), bins["semaphorectl"], "status", "--timeout", "2m", "--socket",
		v.path("broker.sock")).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("semaphorectl status: %v: %.500s", err, out)
	}
	for _, want := range []string{"cluster c2: ", "cluster c3: ", "more problems", "n00", "n59"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("semaphorectl status says nothing of %q", want)
		}
	}
}

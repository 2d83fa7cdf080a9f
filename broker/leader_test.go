package broker

import (
	"maps"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/loopback"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// status asks a broker on its socket.
func (w *world) status(cfg *config.Broker) *semaphorev1.GetStatusResponse {
	w.t.Helper()
	conn, err := grpc.NewClient("unix://"+cfg.Listen.DebugSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	s, err := semaphorev1.NewDebugServiceClient(conn).GetStatus(w.t.Context(), &semaphorev1.GetStatusRequest{}, grpc.WaitForReady(true))
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// Of two brokers one works. When it stops, the other goes on in its place, and nothing that stands is written again.
func TestTwoBrokers(t *testing.T) {
	w := newWorld(t)
	noLeaks(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	w.cfg.LeaderElection.Enabled = true
	w.cfg.LeaderElection.Duration.Duration = 5 * time.Second
	other := *w.cfg
	other.Listen.Federation, other.Listen.Peering, other.Listen.HTTP = loopback.Address(t), loopback.Address(t), loopback.Address(t)
	other.Listen.DebugSocket += "2"

	stop := w.start(w.cfg)
	stopOther, _ := w.launch(&other)
	eventually(t, "the second stands by", func() (bool, string) {
		_, text := get("http://" + other.Listen.HTTP + "/readyz")
		return strings.TrimSpace(text) == "standby: "+host+" leads", text
	})
	if ok, text := get("http://" + other.Listen.HTTP + "/healthz"); !ok {
		t.Errorf("a standby is not alive: %s", text)
	}
	if s := w.status(&other); !s.GetStandby() || s.GetReady() || s.GetLeader() != host || len(s.GetLinks())+len(s.GetProblems()) > 0 {
		t.Errorf("status of the standby: %v", s)
	}
	if s := w.status(w.cfg); s.GetStandby() || !s.GetReady() || s.GetLeader() != host || len(s.GetLinks()) != 2 {
		t.Errorf("status of the leader: %v", s)
	}
	for cfg, want := range map[*config.Broker]string{w.cfg: "\nsemaphore_leader 1\n", &other: "\nsemaphore_leader 0\n"} {
		if _, text := get("http://" + cfg.Listen.HTTP + "/metrics"); !strings.Contains(text, want) {
			t.Errorf("no metric %q", want)
		}
	}
	for _, address := range []string{other.Listen.Federation, other.Listen.Peering} {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			t.Errorf("the standby listens on %s", address)
		}
	}

	export := []*semaphorev1.Object{
		nodeObject("n1", 21, "10.2.1.0/24"), serviceObject("shop", "echo", 80), sliceObject("shop", "echo-x", "echo", "10.2.1.5"),
		memberObject("shop", "echo-0", "u1", "echo", "10.2.1.5"),
	}
	sendAll(w.exporter("c2"), "e1", export...)
	w.becomes("everything of c2", `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
pool semaphore-c3-10-3-0-0-16: 10.3.0.0/16 disabled true
service c2-shop-73736d-echo: 80
set c2-shop-echo: 10.2.1.5/32
slice of c2-shop-73736d-echo: 10.2.1.5`)
	before := w.written()

	began := time.Now()
	stop()
	eventually(t, "the second leads", func() (bool, string) { return get("http://" + other.Listen.HTTP + "/readyz") })
	t.Logf("the second was ready %s after the first was asked to stop", time.Since(began))
	w.cfg = &other
	sendAll(w.exporter("c2"), "e1", export...)
	time.Sleep(500 * time.Millisecond)
	if after := w.written(); !maps.Equal(before, after) {
		t.Errorf("written anew:\n%v\nbefore:\n%v", after, before)
	}
	stopOther()
}

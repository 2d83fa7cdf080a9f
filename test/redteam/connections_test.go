package redteam

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// TestConnections checks that one broker with the shipped configuration withstands what strangers and remotes do with
// connections and streams.
func TestConnections(t *testing.T) {
	v := start(t)
	// The attacks with a memory bound run first, because later ones start with the memory that the broker has kept.
	for _, attack := range []struct {
		name string
		run  func(*victim)
	}{
		{"the HTTP listener", attackHTTP},
		{"the connections of a remote", attackFederation},
		{"the connections of strangers", attackPeering},
		{"admissions that fail at once", failAdmissions},
		{"streams that read nothing", readNothing},
	} {
		t.Run(attack.name, func(t *testing.T) {
			in := *v
			in.t = t
			attack.run(&in)
		})
	}
}

// readNothing checks that a stream whose exporter reads nothing, so that the broker blocks in a send, ends when another
// stream replaces it.
func readNothing(v *victim) {
	kind := semaphorev1.Kind_KIND_SET_MEMBER
	var refused []*semaphorev1.Object
	for i := range 5000 {
		refused = append(refused, member(i, "8.8.8.8"))
	}
	for range 10 { // of c3, as c2 has opened as many streams as it may in this minute
		s := v.publish("c3")
		s.tell(hello("c3", "e1", 5000, kind))
		for _, m := range snapshot(kind, 5000, refused...) {
			_ = s.call.SendMsg(encode(v.t, m)) // and read nothing
		}
		time.Sleep(200 * time.Millisecond)
	}
	v.eventually("one stream is left", func() error {
		if n := v.metric("grpc_server_started_total", "Publish") - v.metric("grpc_server_handled_total", "Publish"); n > 1 {
			return fmt.Errorf("%v streams are served", n)
		}
		return nil
	})
}

// flood tries to open n connections to an address and returns when all have been tried. It keeps them open until stop
// is called or the other end closes them.
func flood(t *testing.T, address string, config *tls.Config, n int) (stop func()) {
	t.Helper()
	var mu sync.Mutex
	var open []net.Conn
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range n / 8 {
				conn, err := net.DialTimeout("tcp", address, 2*time.Second)
				if err != nil {
					continue
				}
				if config != nil {
					secured := tls.Client(conn, config)
					secured.SetDeadline(time.Now().Add(5 * time.Second))
					if secured.Handshake() == nil {
						// Send the HTTP/2 preface like a gRPC client, so that the server treats the connection as established.
						_, _ = secured.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
					}
				}
				mu.Lock()
				open = append(open, conn)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return func() {
		for _, conn := range open {
			conn.Close()
		}
	}
}

// attackFederation checks that an attacker with the certificate of one exporter gets only its share of the connections,
// and that another exporter can connect during thousands of attempts.
func attackFederation(v *victim) {
	t := v.t
	v.costs("2,000 connections of c2", 128<<20, func() {
		conns := make([]*stream, 0, 40)
		for range 40 { // each with a stream, so that none is idle
			if s, err := open(t, v.dial("c2", "exporter"), publishMethod, ""); err == nil {
				conns = append(conns, s)
			}
		}
		began := time.Now()
		stop := flood(t, v.federation, nil, 2000) // connections that never finish their handshakes
		defer stop()
		flooded := time.Since(began)
		honest := v.publish("c3")
		honest.tell(hello("c3", "e1", 1, semaphorev1.Kind_KIND_SET_MEMBER))
		if _, err := honest.next(patience); err != nil {
			t.Errorf("another remote, beside %d: %v", len(conns), err)
		}
		v.makesRoom("federation", flooded)
	})
}

// makesRoom checks that the listener had to close connections, after those of a flood that took some time.
func (v *victim) makesRoom(listener string, flooded time.Duration) {
	v.t.Helper()
	const handshake = 10 * time.Second // handshakeTimeout of broker/server.go
	switch closed := v.metric("semaphore_broker_connections_refused_total", fmt.Sprintf("listener=%q", listener)); {
	case closed > 0:
	case flooded < handshake:
		v.t.Error("no connection was closed")
	default:
		tier.NotTested(v.t, "the flood of the %s listener took %s: its first connections had ended by themselves", listener,
			flooded)
	}
}

// attackPeering checks that agents can attach while a stranger without a token holds thousands of connections. The
// agents' listener requires no client certificate.
func attackPeering(v *victim) {
	t := v.t
	token := v.agentToken("n1", "192.0.2.9")
	config := trust.ClientTLS(v.path("bundles", "c1.pem"), identity.Broker("c1")).Clone()
	config.NextProtos = []string{"h2"}
	var flooded time.Duration
	v.costs("9,000 connections of a stranger, 1,000 of them with TLS", 256<<20, func() {
		began := time.Now()
		stop := flood(t, v.peering, config, 1000)
		defer stop()
		stopTCP := flood(t, v.peering, nil, 8000)
		defer stopTCP()
		flooded = time.Since(began)
		s := testkit.Value(open(t, v.dialPeering(), attachMethod, token))(t)
		_ = s.call.SendMsg(encode(t, players.AgentHello(&semaphorev1.AgentHello{})))
		if _, err := s.nextBytes(patience); err != nil {
			t.Errorf("an agent: %v", err)
		}
	})
	v.makesRoom("peering", flooded)
}

// idleConnections opens connections without a stream, of a stranger and of c2, and reports how long the stranger's
// stayed open. It answers pings, and sends some.
func idleConnections(v *victim) <-chan time.Duration {
	t := v.t
	config := trust.ClientTLS(v.path("bundles", "c1.pem"), identity.Broker("c1")).Clone()
	config.NextProtos = []string{"h2"}
	conn := testkit.Value(tls.Dial("tcp", v.peering, config))(t)
	t.Cleanup(func() { conn.Close() })
	testkit.Value(conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")))(t)
	idle := v.dial("c2", "exporter")
	idle.Connect()
	begun, ended := time.Now(), make(chan time.Duration, 1)
	conn.SetDeadline(begun.Add(patience))
	go func() {
		defer func() { ended <- time.Since(begun) }()
		framer := http2.NewFramer(conn, conn)
		for pings := time.Duration(0); ; {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			if ping, ok := frame.(*http2.PingFrame); ok && !ping.IsAck() {
				_ = framer.WritePing(true, ping.Data)
			}
			if time.Since(begun) > pings*10*time.Second { // more often would end it earlier
				pings++
				_ = framer.WritePing(false, [8]byte{})
			}
		}
	}()
	return ended
}

// attackHTTP checks that idle connections do not block the kubelet's probes.
func attackHTTP(v *victim) {
	t := v.t
	v.costs("2,000 connections to the HTTP listener", 64<<20, func() {
		stop := flood(t, v.http, nil, 2000)
		defer stop()
		beside := kubetest.WriteBeside(t, v.kube)
		defer beside.Stop()
		for range 20 {
			begun := time.Now()
			if _, err := v.get("/healthz"); err != nil {
				t.Fatalf("a probe: %v", err)
			}
			if took, late := time.Since(begun), beside.Late(); took > 5*time.Second+late {
				t.Errorf("a probe took %s, and %s are for a machine as busy as this one", took, late)
			}
		}
	})
	if v.metric("semaphore_http_connections_refused_total") == 0 {
		t.Error("semaphore_http_connections_refused_total counts nothing")
	}
	if n := v.metric("process_open_fds"); n > 400 {
		t.Errorf("the broker has %v open files", n)
	}
}

// failAdmissions checks that only few of any number of concurrent attempts with bad tokens cause a TokenReview.
func failAdmissions(v *victim) {
	t := v.t
	reviews := func() (n float64) {
		text := testkit.Value(v.kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()))(t)
		return testkit.Scraped(t, string(text), "apiserver_request_total", `resource="tokenreviews"`)
	}
	before, began := reviews(), time.Now()
	var group sync.WaitGroup
	var mu sync.Mutex
	by := map[codes.Code]int{}
	for range 100 {
		conn := v.dialPeering()
		for range 4 {
			group.Go(func() {
				s, err := open(t, conn, attachMethod, "not-a-token")
				if err == nil {
					_, err = s.nextBytes(patience)
				}
				mu.Lock()
				by[status.Code(err)]++
				mu.Unlock()
			})
		}
	}
	group.Wait()
	n := reviews() - before
	t.Logf("400 attempts at once cost %v reviews: %v", n, by)
	// A review that the apiserver does not answer in time, because it gets no CPU time, says nothing about the token.
	reviewed := by[codes.Unauthenticated] + by[codes.Unavailable]
	if reviewed == 0 || reviewed+by[codes.ResourceExhausted] != 400 || float64(by[codes.Unavailable]) > n {
		t.Errorf("400 attempts end with %v", by)
	}
	if n < 1 || n > 21+time.Since(began).Seconds()/5 { // 20, and one each 5 s
		t.Errorf("400 attempts at once cost the apiserver %v reviews, and 20 are to be let through", n)
	}
}

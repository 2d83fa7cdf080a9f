package broker

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/operator"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// Rules of docs/rules.md that only a real listener can prove.

func TestR01AStreamSpeaksForItsOwnClusterOnly(t *testing.T) {
	l := serve(t)
	e := l.exporter("c3")
	e.Send(players.Hello("c2", "e1", 0, semaphorev1.Kind_KIND_NODE))
	if err := e.Err(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("c3 says that it is c2: %v", err)
	}
	eventually(t, "reported", func() (bool, string) {
		s := l.server.Status()[1]
		return strings.Contains(s.LastError, `hello.cluster "c2": the certificate is for "c3"`), s.String()
	})
}

// Bytes before the end of a handshake reach no decoder. The connection just ends, and others continue.
func TestR03NothingIsReadBeforeTheHandshakeIsDone(t *testing.T) {
	kubetest.NoLeaks(t)
	l := serve(t)
	good := l.exporter("c2")
	good.Greet(players.Hello("c2", "e1", 1, semaphorev1.Kind_KIND_SET_MEMBER))
	good.Send(players.Snapshot(semaphorev1.Kind_KIND_SET_MEMBER, 1, players.Members("10.2", 1)...)...)
	good.Acked(1)

	raw := func(t *testing.T, bytes string) (answer []byte) {
		t.Helper()
		conn, err := net.Dial("tcp", l.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		testkit.Value(io.WriteString(conn, bytes))(t)
		answer, err = io.ReadAll(conn)
		if isTimeout(err) {
			t.Error("the connection stays open")
		}
		return answer
	}
	for name, bytes := range map[string]string{
		"HTTP":               "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"HTTP/2 without TLS": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\x00", 64),
		"garbage":            strings.Repeat("\xff\x00semaphore", 1000),
		"a TLS record":       "\x16\x03\x01\x40\x00" + strings.Repeat("x", 0x4000),
	} {
		t.Run(name, func(t *testing.T) {
			// At most a TLS alert is sent, and no HTTP/2 frame, which would begin with its length.
			if answer := raw(t, bytes); len(answer) > 0 && answer[0] != 0x15 &&
				!strings.HasPrefix(string(answer), "HTTP/1.0 400") {
				t.Errorf("answered by %q", answer)
			}
		})
	}
	t.Run("gRPC without TLS", func(t *testing.T) {
		conn := testkit.Value(grpc.NewClient("passthrough:///"+l.address,
			grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
		defer conn.Close()
		if err := refused(t, conn); status.Code(err) != codes.Unavailable {
			t.Errorf("error %v", err)
		}
	})
	t.Run("TLS without a certificate, and with an older version", func(t *testing.T) {
		for name, cfg := range map[string]*tls.Config{
			"no certificate": {InsecureSkipVerify: true, NextProtos: []string{"h2"}},
			"TLS 1.2":        {InsecureSkipVerify: true, NextProtos: []string{"h2"}, MaxVersion: tls.VersionTLS12},
		} {
			conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", l.address, cfg)
			if err != nil {
				continue // as TLS 1.2 must be
			}
			if name == "TLS 1.2" {
				t.Error("TLS 1.2 is taken")
			}
			// In TLS 1.3 the client's handshake ends before the server refuses it.
			conn.SetDeadline(time.Now().Add(patience))
			fmt.Fprint(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
			if answer, err := io.ReadAll(conn); err == nil || isTimeout(err) || len(answer) > 0 {
				t.Errorf("%s: answered by %q, %v", name, answer, err)
			}
			conn.Close()
		}
	})
	good.Send(players.Upserts(2, players.Members("10.2", 2)[1]))
	good.Acked(2)
	if s := l.server.Status()[0]; !s.Connected {
		t.Errorf("the good stream: %v", s)
	}
}

func TestR04WhatAConnectionMayAskForIsBounded(t *testing.T) {
	l := serve(t)
	conn := l.dial("c2", "exporter")
	t.Run("a message over the limit", func(t *testing.T) {
		e := players.Publish(t, conn)
		big := players.Hello("c2", "e1", 0, semaphorev1.Kind_KIND_NODE)
		big.GetHello().SoftwareVersion = strings.Repeat("x", federation.MaxMessage)
		if err := e.Stream.Send(big); err != nil && !errors.Is(err, io.EOF) { // it may have been answered already
			t.Fatal(err)
		}
		if err := e.Err(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("error %v", err)
		}
		eventually(t, "reported", func() (bool, string) {
			s := l.server.Status()[0]
			return strings.Contains(s.LastError, "larger than max"), s.String()
		})
	})
	t.Run("a small message that is large once it is unpacked", func(t *testing.T) {
		e := players.Publish(t, conn)
		bomb := players.Hello("c2", "e1", 0, semaphorev1.Kind_KIND_NODE)
		bomb.GetHello().SoftwareVersion = strings.Repeat("x", federation.MaxMessage+1<<20) // gzip makes 5 kB of it
		if err := e.Stream.Send(bomb); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if err := e.Err(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("error %v", err)
		}
	})
	t.Run("streams, and those that say nothing", func(t *testing.T) {
		// Use another remote than above: gRPC answers a message over the limit before the broker sees the end of that stream,
		// so the stream still counts as open.
		conn := l.dial("c3", "exporter")
		ended := make(chan error)
		for range 5 {
			e := players.Publish(t, conn) // and say nothing
			go func() { ended <- e.Err() }()
		}
		// One ends immediately, the others because they send nothing.
		if err := <-ended; status.Code(err) != codes.ResourceExhausted ||
			!strings.Contains(err.Error(), "has 4 streams open") {
			t.Errorf("one more than 4 streams: %v", err)
		}
		for range 4 {
			if err := <-ended; status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("one of 4 streams that say nothing: %v", err)
			}
		}
	})
}

// R5: a remote that changes too fast is read more slowly, another one is not, and its next stream does not wait for the
// changes of the last one. TestR05ChangesArePaced (broker/federation) has how slowly.
func TestR05ARemoteThatChangesTooFastIsThrottled(t *testing.T) {
	kubetest.NoLeaks(t)
	l := serve(t, func(cfg *config.Broker) {
		for i := range cfg.Remotes {
			cfg.Remotes[i].Limits.ChangesPerSecond = 20 // and 200 at once
		}
	})
	kind := semaphorev1.Kind_KIND_SET_MEMBER
	var fast, calm *players.Exporter
	for cluster, e := range map[string]**players.Exporter{"c2": &fast, "c3": &calm} {
		*e = l.exporter(cluster)
		(*e).Send(players.Hello(cluster, "e1", 1000, kind))
		(*e).Recv()
	}
	fast.Send(players.Snapshot(kind, 1000, players.Members("10.2", 1000)...)...)
	fast.Acked(1000)
	calm.Send(players.Snapshot(kind, 1000)...)
	calm.Acked(1000)

	// While one remote waits for 40 s, the other does not.
	fast.Send(players.Upserts(2001, players.Members("10.2", 1000)...))
	o := players.Member("shop", "x", "x", "web", "10.3.0.1")
	for i := range uint64(20) {
		calm.Send(players.Upserts(1001+i, o))
		calm.Acked(1001 + i)
	}
	// A new stream does not wait for the changes of the old one.
	newer := l.exporter("c2")
	newer.Greet(players.Hello("c2", "e1", 3000, kind))
	if err := fast.Err(); status.Code(err) != codes.Aborted {
		t.Errorf("the older stream ends with %v", err)
	}
	if s := l.server.Status()[0]; !s.Connected {
		t.Errorf("status %v", s)
	}
}

func TestR05ARemoteThatBeginsStreamsTooOftenIsRefused(t *testing.T) {
	l := serve(t, func(cfg *config.Broker) { cfg.Remotes[0].Limits.StreamsPerMinute = 3 })
	conn := l.dial("c2", "exporter")
	for range 3 {
		e := players.Publish(t, conn)
		e.Greet(players.Hello("c2", "e1", 0, semaphorev1.Kind_KIND_NODE))
		e.Cancel()
	}
	eventually(t, "seen to be gone", func() (bool, string) { s := l.server.Status()[0]; return !s.Connected, s.String() })
	// One more stream may begin every 20 s, which an earlier one may have used. An admitted stream that sends nothing
	// occupies the broker until the Hello timeout.
	err := refused(t, conn)
	for more := 0; more < 5 && status.Code(err) == codes.DeadlineExceeded; more++ {
		err = refused(t, conn)
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "more than 3 streams a minute") {
		t.Errorf("the fourth: %v", err)
	}
	eventually(t, "reported", func() (bool, string) {
		s := l.server.Status()[0]
		return strings.Contains(s.LastError, "streams"), s.String()
	})
	other := l.exporter("c3")
	other.Greet(players.Hello("c3", "e1", 0, semaphorev1.Kind_KIND_NODE))
}

// R24, from the withdrawal to the operator's release.
func TestR24TheOperatorReleasesTheBrake(t *testing.T) {
	l := serve(t)
	kind := semaphorev1.Kind_KIND_SET_MEMBER
	e := l.exporter("c2")
	e.Greet(players.Hello("c2", "e1", 100, kind))
	e.Send(players.Snapshot(kind, 100, players.Members("10.2", 40)...)...)
	e.Acked(100)
	e = l.exporter("c2")
	e.Greet(players.Hello("c2", "e2", 1, kind))
	e.Send(players.Snapshot(kind, 1)...)
	e.Acked(1)
	k := l.server.Status()[0].Kinds[3]
	if k.Objects != 40 || k.Retained != 40 || k.RetainedSince == nil || k.Limit == 0 || k.LastHeard == nil {
		t.Fatalf("status %v", k)
	}
	if lines := finding.Texts(l.server.Findings()); len(lines) != 1 ||
		!strings.Contains(lines[0], "cluster c2 has withdrawn setmember shop/m0") || !strings.Contains(lines[0], "37 more") {
		t.Errorf("lines %q", lines)
	}

	if _, err := semaphorev1.NewControlServiceClient(l.dial("c2", "exporter")).ReleaseBrake(t.Context(),
		&semaphorev1.ReleaseBrakeRequest{Cluster: "c2"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the remote itself releases the brake: %v", err)
	}
	me := semaphorev1.NewControlServiceClient(l.dial("c1", "semaphorectl"))
	release := func(cluster string, kinds ...semaphorev1.Kind) (string, codes.Code) {
		answer, err := me.ReleaseBrake(t.Context(), &semaphorev1.ReleaseBrakeRequest{Cluster: cluster, Kinds: kinds})
		return fmt.Sprint(len(answer.GetReleased()), " ", answer.GetReleased()), status.Code(err)
	}
	if _, code := release("c2"); code != codes.FailedPrecondition {
		t.Errorf("a standby: %v", code)
	}
	l.operators.Lead(&operator.Broker{Federation: l.server, Release: noEngines(t).Release})
	for _, w := range []struct {
		cluster string
		kind    semaphorev1.Kind
		code    codes.Code
	}{
		{"c9", kind, codes.NotFound},
		{"c2", semaphorev1.Kind_KIND_NODE, codes.FailedPrecondition},
		{"c2", 77, codes.InvalidArgument},
		{"c2", kind, codes.OK},
		{"c2", kind, codes.FailedPrecondition},
	} {
		if got, code := release(w.cluster, w.kind); code != w.code || code == codes.OK && !strings.Contains(got, "40") {
			t.Errorf("release of %s, %s: %s, %v", w.cluster, w.kind, got, code)
		}
	}
	if k := l.server.Status()[0].Kinds[3]; k.Objects != 0 || k.Retained != 0 {
		t.Errorf("status %v", k)
	}

	// An exporter that no longer exports the kind, because its feature was removed, is not late with it.
	e = l.exporter("c2")
	e.Greet(players.Hello("c2", "e3", 2, kind))
	e.Send(players.Snapshot(kind, 2, players.Members("10.2", 2)...)...)
	e.Acked(2)
	l.exporter("c2").Greet(players.Hello("c2", "e4", 0, semaphorev1.Kind_KIND_NODE))
	if k := l.server.Status()[0].Kinds[3]; k.Objects != 2 || k.Retained != 2 || k.AwaitedSince != nil ||
		k.LastHeard == nil {
		t.Errorf("status %v", k)
	}
	if lines := finding.Texts(l.server.Findings()); len(lines) != 1 || !strings.Contains(lines[0],
		"until `semaphorectl release c2` (its exporter no longer exports this kind): cluster c2 has withdrawn setmember") {
		t.Errorf("lines %q", lines)
	}
	if got, code := release("c2", kind); code != codes.OK || !strings.Contains(got, "objects:2") {
		t.Errorf("released %s, %v", got, code)
	}
	if k := l.server.Status()[0].Kinds[3]; k.Objects != 0 || k.Retained != 0 || len(l.server.Findings()) > 0 {
		t.Errorf("status %v, %v", k, l.server.Findings())
	}
}

// No decision depends on a remote's clock: with any time, the same objects are accepted, refused and acknowledged.
func TestR25TheClockOfARemoteDecidesNothing(t *testing.T) {
	kind := semaphorev1.Kind_KIND_SET_MEMBER
	var first string
	for name, at := range map[string]*timestamppb.Timestamp{
		"now": timestamppb.Now(), "none": nil, "1970": {}, "the year 9999": {Seconds: 253402300799},
		"long ago": {Seconds: -62135596800}, "invalid": {Seconds: 1 << 62, Nanos: -7},
	} {
		l := serve(t)
		e := l.exporter("c2")
		e.Greet(players.Hello("c2", "e1", 100, kind))
		dated := func(m *semaphorev1.PublishRequest) *semaphorev1.PublishRequest {
			for _, c := range m.GetChanges().GetChanges() {
				c.ObservedAt = at
			}
			return m
		}
		for _, m := range players.Snapshot(kind, 100, append(players.Members("10.2", 30), players.Member("shop", "bad", "u",
			"web", "10.9.0.1"))...) {
			e.Send(dated(m))
		}
		got := fmt.Sprint(e.Acked(100))
		e.Send(dated(players.Upserts(101, players.Members("10.2", 2)...)),
			dated(players.Deletion(103, players.Members("10.2", 1)[0])))
		e.Acked(103)
		e.Send(players.Beat(104, 104))
		e.Acked(104)
		s := l.server.Status()[0]
		if age := time.Since(s.LastHeard.AsTime()).Abs(); age > time.Minute {
			t.Errorf("%s: heard %s ago", name, age)
		}
		got += fmt.Sprint(s.Kinds[3].Objects, s.Kinds[3].Refused, s.Kinds[3].Retained, s.Behind, refusedLine(l.server))
		if first == "" {
			first = got
		}
		if got != first {
			t.Errorf("%s: %s, and before %s", name, got, first)
		}
	}
}

// refusedLine returns the status line about refused objects, without the retained ones.
func refusedLine(server *federation.Server) string {
	lines := finding.Texts(server.Findings())
	i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "refused ") })
	return lines[i]
}

// noEngines returns the engines of a broker that has written nothing.
func noEngines(t *testing.T) engines {
	t.Helper()
	quiet := func(_, _ string, _ finding.Code, _ string) bool { return true }
	return newEngines(brokerConfig(t, clusters{}), nil, quiet, time.Now)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

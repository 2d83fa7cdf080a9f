package identity

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestF19Rollover (F19): the order of steps in docs/certificates.md for a cluster's new root. After every step, either
// end accepts a new connection, and the stream that was opened first is still open.
func TestF19Rollover(t *testing.T) {
	ca1, newCA1, ca2 := newCA(t), newCA(t), newCA(t)
	all := map[string][]byte{"c1": ca1.pem(), "c2": ca2.pem()}
	exporter1, broker1 := newPart(t, ca1, "spiffe://c1/exporter", all), newPart(t, ca1, "spiffe://c1/broker", all)
	exporter2, broker2 := newPart(t, ca2, "spiffe://c2/exporter", all), newPart(t, ca2, "spiffe://c2/broker", all)
	agent1 := writeRoots(t, ca1.pem())
	both := bytes.Join([][]byte{ca1.pem(), newCA1.pem()}, nil)

	// Both are opened once: nothing restarts.
	to2, from1 := broker2.source(t).ServerTLS(only(Exporter("c1"))), exporter1.source(t).ClientTLS(Broker("c2"))
	server1 := broker1.source(t)
	to1, from2 := server1.ServerTLS(only(Exporter("c2"))), exporter2.source(t).ClientTLS(Broker("c1"))
	toAgents, fromAgent := server1.ServerOnlyTLS(), bundleClientTLS(agent1, Broker("c1"))
	out, in := stand(t, to2, from1), stand(t, to1, from2)

	hour := time.Now().Add(time.Hour)
	steps := []struct {
		name string
		do   func()
	}{
		{"nothing", func() {}},
		{"certificates rotated", func() {
			exporter1.certificate(t, ca1, hour, "spiffe://c1/exporter")
			broker1.certificate(t, ca1, hour, "spiffe://c1/broker")
			broker2.certificate(t, ca2, hour, "spiffe://c2/broker")
		}},
		{"1. c2's broker trusts both roots", func() { broker2.bundle(t, "c1", both) }},
		{"1. c2's exporter does", func() { exporter2.bundle(t, "c1", both) }},
		{"1. c1's exporter and broker do", func() { exporter1.bundle(t, "c1", both); broker1.bundle(t, "c1", both) }},
		{"1. c1's agents do", func() { write(t, agent1, both) }},
		{"2. c1's exporter has a certificate of the new root",
			func() { exporter1.certificate(t, newCA1, hour, "spiffe://c1/exporter") }},
		{"2. c1's broker has", func() { broker1.certificate(t, newCA1, hour, "spiffe://c1/broker") }},
		{"3. c1's agents forget the old root", func() { write(t, agent1, newCA1.pem()) }},
		{"3. c1's exporter and broker do",
			func() { exporter1.bundle(t, "c1", newCA1.pem()); broker1.bundle(t, "c1", newCA1.pem()) }},
		{"3. c2's broker does", func() { broker2.bundle(t, "c1", newCA1.pem()) }},
		{"3. c2's exporter does", func() { exporter2.bundle(t, "c1", newCA1.pem()) }},
	}
	for _, step := range steps {
		step.do()
		for range 3 {
			mustPass(t, step.name+": c1's exporter at c2's broker", to2, from1)
			mustPass(t, step.name+": c2's exporter at c1's broker", to1, from2)
			mustPass(t, step.name+": an agent at c1's broker", toAgents, fromAgent)
		}
		out.echo(t)
		in.echo(t)
	}

	// Certificates of the old root are no longer accepted.
	late := newPart(t, ca1, "spiffe://c1/exporter", map[string][]byte{"c1": newCA1.pem(), "c2": ca2.pem()})
	mustFail(t, "the old root", to2, late.source(t).ClientTLS(Broker("c2")), "unknown authority", "remote error: tls:")

	// The wrong order fails: the other end does not have the root of this certificate yet.
	third := newCA(t)
	exporter1.certificate(t, third, hour, "spiffe://c1/exporter")
	mustFail(t, "leaf before root", to2, from1, "unknown authority", "remote error: tls:")
	out.echo(t)
}

// TestF18BothClocksAreNamed (F18): if clocks differ, or a certificate has expired, both ends report the times of both
// clocks: the refusing one in its log, the refused one in the error of its stream.
func TestF18BothClocksAreNamed(t *testing.T) {
	ca1, ca2 := newCA(t), newCA(t)
	all := map[string][]byte{"c1": ca1.pem(), "c2": ca2.pem()}
	broker, exporter := newPart(t, ca2, "spiffe://c2/broker", all), newPart(t, ca1, "spiffe://c1/exporter", all)
	client := exporter.source(t)
	refused := func(t *testing.T, client *Source) error {
		t.Helper()
		_, err := dialEcho(t, serveEcho(t, broker.source(t).ServerTLS(only(Exporter("c1")))), client.ClientTLS(Broker("c2")))
		if err == nil {
			t.Fatal("it was let in")
		}
		return client.Refused(err)
	}

	const layout = "2006-01-02 15:04"
	now := time.Now().UTC()
	for _, test := range []struct {
		name                string
		notBefore, notAfter time.Time
		says                string
	}{
		{"expired", now.Add(-30 * time.Minute), now.Add(-10 * time.Minute), "has expired 10m"},
		{"not yet valid", now.Add(10 * time.Minute), now.Add(time.Hour), "is not yet valid, for another"},
	} {
		wants := []string{test.says, test.notBefore.Format(layout), test.notAfter.Format(layout), "our clock says " +
			now.Format("2006-01-02 15")}
		has := func(t *testing.T, who, text string) {
			t.Helper()
			for _, want := range wants {
				if !strings.Contains(text, want) {
					t.Errorf("%s does not say %q:\n%s", who, want, text)
				}
			}
		}
		t.Run("the caller's has "+test.name, func(t *testing.T) {
			log := testkit.CaptureLog(t)
			exporter.validity(t, ca1, test.notBefore, test.notAfter, "spiffe://c1/exporter")
			has(t, "the error", refused(t, client).Error())
			_, line, _ := strings.Cut(log.String(), "a caller's certificate is refused")
			has(t, "the log", line)
			for _, want := range []string{"a caller's certificate is refused", "from=127.0.0.1", "names=spiffe://c1/exporter"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("no %q in the log:\n%s", want, log)
				}
			}
			exporter.certificate(t, ca1, now.Add(time.Hour), "spiffe://c1/exporter")
		})
		t.Run("the listener's has "+test.name, func(t *testing.T) {
			log := testkit.CaptureLog(t)
			broker.validity(t, ca2, test.notBefore, test.notAfter, "spiffe://c2/broker")
			has(t, "the error", refused(t, client).Error())
			has(t, "the log", log.String())
			if !strings.Contains(log.String(), "peers will refuse our own certificate; replace it") {
				t.Errorf("the listener does not know:\n%s", log)
			}
			broker.certificate(t, ca2, now.Add(time.Hour), "spiffe://c2/broker")
		})
	}

	t.Run("refused for another reason", func(t *testing.T) {
		log := testkit.CaptureLog(t)
		other := newPart(t, ca1, "spiffe://c1/semaphorectl", all).source(t)
		refused(t, other)
		if !strings.Contains(log.String(), "spiffe://c1/semaphorectl is not spiffe://c1/exporter") {
			t.Errorf("the log:\n%s", log)
		}
		// The alert may be lost if the other end closes the connection immediately. This is gRPC's error if it is not.
		alert := status.Error(codes.Unavailable, "error reading server preface: remote error: tls: bad certificate")
		for _, want := range []string{"the other end refuses our certificate, spiffe://c1/semaphorectl, valid from",
			"its log says why"} {
			if text := other.Refused(alert).Error(); !strings.Contains(text, want) {
				t.Errorf("%s; want %q", text, want)
			}
		}
		plain := status.Error(codes.Unavailable, "connection refused")
		if other.Refused(plain) != plain || other.Refused(nil) != nil {
			t.Error("another error was changed")
		}
	})
}

// TestOwnID: a part that starts with another part's certificate reports that. One that receives such a certificate
// later keeps its own.
func TestOwnID(t *testing.T) {
	ca := newCA(t)
	p := newPart(t, ca, "spiffe://c1/exporter", map[string][]byte{"c1": ca.pem()})
	_, err := Open(t.Context(), p.files, Broker("c1"))
	if err == nil || !strings.Contains(err.Error(), p.files.CertFile) ||
		!strings.Contains(err.Error(), "it is that of spiffe://c1/exporter, and this part has to be spiffe://c1/broker") {
		t.Errorf("%v; want the file, what it is and what it should be", err)
	}
	s := testkit.Value(Open(t.Context(), p.files, Exporter("c1")))(t)
	log := testkit.CaptureLog(t)
	p.certificate(t, ca, time.Now().Add(time.Hour), "spiffe://c1/broker")
	svid, err := s.GetX509SVID()
	if err != nil || svid.ID != Exporter("c1") || !strings.Contains(log.String(), "it is that of spiffe://c1/broker") {
		t.Errorf("%v, %v, log:\n%s", svid.ID, err, log)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

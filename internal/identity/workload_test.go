package identity

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	workloadpb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// agent is a Workload API on a socket. It implements the published protocol, with answers from the test.
type agent struct {
	workloadpb.UnimplementedSpiffeWorkloadAPIServer
	socket string

	mu      sync.Mutex
	gives   *workloadpb.X509SVIDResponse
	refuses error
	changed chan struct{}
	asked   int
}

func newAgent(t *testing.T) *agent {
	t.Helper()
	a := &agent{socket: filepath.Join(t.TempDir(), "agent.sock"), changed: make(chan struct{})}
	a.serve(t)
	return a
}

// serve runs the agent until the test ends or the returned function is called.
func (a *agent) serve(t *testing.T) (stop func()) {
	t.Helper()
	listener := testkit.Value(net.Listen("unix", a.socket))(t)
	g := grpc.NewServer()
	workloadpb.RegisterSpiffeWorkloadAPIServer(g, a)
	return testkit.Serve(t, listener, g)
}

func (a *agent) address() string { return "unix://" + a.socket }

// give makes the agent push certificates and roots from now on; refuse makes it end every stream.
func (a *agent) give(federated map[string][]byte, svids ...*workloadpb.X509SVID) {
	a.set(&workloadpb.X509SVIDResponse{Svids: svids, FederatedBundles: federated}, nil)
}

func (a *agent) refuse(err error) { a.set(nil, err) }

func (a *agent) set(gives *workloadpb.X509SVIDResponse, refuses error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gives, a.refuses = gives, refuses
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *agent) FetchX509SVID(_ *workloadpb.X509SVIDRequest,
	stream workloadpb.SpiffeWorkloadAPI_FetchX509SVIDServer) error {
	// The header keeps a browser from being tricked into a request.
	if md, _ := metadata.FromIncomingContext(stream.Context()); strings.Join(md["workload.spiffe.io"], "") != "true" {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	for {
		a.mu.Lock()
		gives, refuses, changed := a.gives, a.refuses, a.changed
		a.asked++
		a.mu.Unlock()
		if refuses != nil {
			return refuses
		}
		if gives != nil {
			if err := stream.Send(gives); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-changed:
		}
	}
}

// svid returns a certificate in the form of the Workload API: DER, with the roots of its own trust domain.
func svid(t *testing.T, ca *authority, notAfter time.Time, id string, roots ...*authority) *workloadpb.X509SVID {
	t.Helper()
	cert, key := ca.issue(t, notAfter, id)
	s := &workloadpb.X509SVID{SpiffeId: id, X509Svid: der(t, cert), X509SvidKey: der(t, key)}
	for _, root := range append([]*authority{ca}, roots...) {
		s.Bundle = append(s.Bundle, root.cert.Raw...)
	}
	return s
}

func der(t *testing.T, text []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("no PEM")
	}
	return block.Bytes
}

func (a *agent) open(t *testing.T, want string) (*Source, error) {
	t.Helper()
	own := Exporter("c1")
	if want != own.String() {
		own = Broker("c1")
	}
	s, err := Open(t.Context(), config.TLS{WorkloadAPI: a.address()}, own)
	if err == nil {
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return s, err
}

// until waits for the effect of an update of the Workload API.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testkit.Eventually(t, time.Minute, what, testkit.True(ok))
}

// TestWorkloadAPI: certificates from SPIRE: the first fetch, rotation during an open stream, two roots, and a federated
// bundle that is removed.
func TestWorkloadAPI(t *testing.T) {
	ca1, newCA1, ca2 := newCA(t), newCA(t), newCA(t)
	spire := newAgent(t)
	hour := time.Now().Add(time.Hour)
	other := svid(t, ca1, hour, "spiffe://c1/other") // SPIRE may give a workload several
	spire.give(map[string][]byte{"spiffe://c2": ca2.cert.Raw}, other, svid(t, ca1, hour, "spiffe://c1/exporter"))
	source := testkit.Value(spire.open(t, "spiffe://c1/exporter"))(t)
	serialNow := func() string {
		return testkit.Value(source.GetX509SVID())(t).Certificates[0].SerialNumber.String()
	}

	broker := newPart(t, ca2, "spiffe://c2/broker", map[string][]byte{"c1": ca1.pem(), "c2": ca2.pem()})
	server := broker.source(t).ServerTLS(only(Exporter("c1")))
	client := source.ClientTLS(Broker("c2"))
	mustPass(t, "first", server, client)
	mustFail(t, "a cluster that is not federated", server, source.ClientTLS(Broker("c3")), "bad certificate",
		`unexpected ID "spiffe://c2/broker"`)

	stream := stand(t, broker.source(t).ServerTLS(anyone), client)
	before := serialNow()
	spire.give(map[string][]byte{"spiffe://c2": ca2.cert.Raw}, other, svid(t, ca1, hour, "spiffe://c1/exporter"))
	until(t, "the rotated certificate", func() bool { return serialNow() != before })
	stream.echo(t)
	mustPass(t, "rotated", server, client)

	// The rollover of c1's root: the broker gets the new one first.
	broker.bundle(t, "c1", append(ca1.pem(), newCA1.pem()...))
	before = serialNow()
	spire.give(map[string][]byte{"spiffe://c2": ca2.cert.Raw}, svid(t, newCA1, hour, "spiffe://c1/exporter", ca1))
	until(t, "the certificate of the new root", func() bool { return serialNow() != before })
	mustPass(t, "new root", server, client)
	stream.echo(t)

	// SPIRE removes the federated bundle: no new handshake succeeds, and open streams are not affected.
	spire.give(nil, svid(t, newCA1, hour, "spiffe://c1/exporter"))
	until(t, "the federated bundle to go", func() bool {
		_, err := source.GetX509BundleForTrustDomain(Broker("c2").TrustDomain())
		return err != nil
	})
	mustFail(t, "federation taken back", server, client, "bad certificate",
		`cluster "c2" is not trusted: the Workload API `+spire.address())
	stream.echo(t)

	// After an update without a certificate of this part, the part keeps its own.
	before = serialNow()
	spire.give(map[string][]byte{"spiffe://c2": ca2.cert.Raw}, other)
	until(t, "the update", func() bool {
		_, err := source.GetX509BundleForTrustDomain(Broker("c2").TrustDomain())
		return err == nil
	})
	if serialNow() != before {
		t.Error("our certificate was replaced by another's")
	}
	mustPass(t, "registration entry gone, certificate still good", server, client)
}

// TestWorkloadAPIRoots: an agent uses only the roots, whatever its own certificate is.
func TestWorkloadAPIRoots(t *testing.T) {
	ca1, newCA1 := newCA(t), newCA(t)
	hour := time.Now().Add(time.Hour)
	spire := newAgent(t)
	spire.give(nil, svid(t, ca1, hour, "spiffe://c1/agent"))
	roots := testkit.Value(OpenRoots(t.Context(), "", spire.address()))(t)
	defer roots.Close()
	client := roots.ClientTLS(Broker("c1"))
	listener := newPart(t, ca1, "spiffe://c1/broker", map[string][]byte{"c1": ca1.pem()})
	server := listener.source(t).ServerOnlyTLS()
	mustPass(t, "an agent", server, client)
	listener.certificate(t, newCA1, hour, "spiffe://c1/broker")
	mustFail(t, "before SPIRE gives the new root", server, client, "bad certificate", "unknown authority")
	spire.give(nil, svid(t, ca1, hour, "spiffe://c1/agent", newCA1))
	until(t, "the new root", func() bool {
		b, err := roots.GetX509BundleForTrustDomain(Broker("c1").TrustDomain())
		return err == nil && len(b.X509Authorities()) == 2
	})
	mustPass(t, "with the new root", server, client)
	mustFail(t, "another part", server, roots.ClientTLS(Exporter("c1")), "bad certificate",
		`unexpected ID "spiffe://c1/broker"`)
}

func TestWorkloadAPIOfAnotherPart(t *testing.T) {
	ca1 := newCA(t)
	spire := newAgent(t)
	spire.give(nil, svid(t, ca1, time.Now().Add(time.Hour), "spiffe://c1/exporter"))
	_, err := spire.open(t, "spiffe://c1/broker")
	if err == nil || !strings.Contains(err.Error(),
		"gives a certificate of spiffe://c1/exporter, and this part has to be spiffe://c1/broker") {
		t.Errorf("%v; want what it is and what it should be", err)
	}
}

// TestWorkloadAPIStartWaits: a start waits for the socket, for an answer, and for a registration entry. It ends with
// its context, and then reports the reason.
func TestWorkloadAPIStartWaits(t *testing.T) {
	ca1 := newCA(t)
	spire := newAgent(t)
	spire.refuse(status.Error(codes.PermissionDenied, "no identity issued"))
	opened := make(chan error, 1)
	go func() {
		_, err := spire.open(t, "spiffe://c1/exporter")
		opened <- err
	}()
	until(t, "the API to be asked", func() bool {
		spire.mu.Lock()
		defer spire.mu.Unlock()
		return spire.asked > 0
	})
	select {
	case err := <-opened:
		t.Fatalf("the start did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	spire.give(nil, svid(t, ca1, time.Now().Add(time.Hour), "spiffe://c1/exporter"))
	if err := <-opened; err != nil {
		t.Fatalf("after the registration entry was made: %v", err)
	}

	nowhere := "unix://" + filepath.Join(t.TempDir(), "no.sock")
	ends := func(after time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		defer cancel()
		_, err := Open(ctx, config.TLS{WorkloadAPI: nowhere}, Exporter("c1"))
		return err
	}
	after := 200 * time.Millisecond
	err := ends(after)
	// On a busy machine the context may end before the first request.
	for err != nil && strings.Contains(err.Error(), "no answer yet") && after < time.Minute {
		after *= 2
		err = ends(after)
	}
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), nowhere) ||
		!strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v; want the deadline, the address and the reason", err)
	}
}

// TestWorkloadAPIGoesAndComesBack: SPIRE's agent restarts, or returns an error that the library treats as final. The
// last certificates stay in use, and the API is watched again.
func TestWorkloadAPIGoesAndComesBack(t *testing.T) {
	log := testkit.CaptureLog(t)
	ca1, newCA1 := newCA(t), newCA(t)
	spire := &agent{socket: filepath.Join(t.TempDir(), "agent.sock"), changed: make(chan struct{})}
	stop := spire.serve(t)
	spire.give(nil, svid(t, ca1, time.Now().Add(time.Hour), "spiffe://c1/exporter"))
	source := testkit.Value(spire.open(t, "spiffe://c1/exporter"))(t)
	roots := func() []*x509.Certificate {
		return testkit.Value(source.GetX509BundleForTrustDomain(Exporter("c1").TrustDomain()))(t).X509Authorities()
	}
	stop()
	if _, err := source.GetX509SVID(); err != nil || len(roots()) != 1 {
		t.Errorf("without the agent: %v, %d roots", err, len(roots()))
	}
	spire.serve(t)
	spire.give(nil, svid(t, newCA1, time.Now().Add(time.Hour), "spiffe://c1/exporter"))
	until(t, "the agent to be followed again", func() bool { return roots()[0].Equal(newCA1.cert) })

	spire.refuse(status.Error(codes.InvalidArgument, "not now"))
	until(t, "the last word to be heard", func() bool { return strings.Contains(log.String(), "not now") })
	spire.give(nil, svid(t, ca1, time.Now().Add(time.Hour), "spiffe://c1/exporter"))
	until(t, "the agent to be followed after its last word", func() bool { return roots()[0].Equal(ca1.cert) })
	if !strings.Contains(log.String(), "its last certificates stay in use") || !strings.Contains(log.String(), "not now") {
		t.Errorf("the log does not say what happened:\n%s", log)
	}
}

package identity

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// FuzzPeerID sets any name in the certificate of a peer. It must not panic, and must return only valid IDs, whose text
// is that of the certificate and whose cluster is a valid name.
func FuzzPeerID(f *testing.F) {
	for _, seed := range []string{
		"spiffe://c1/exporter", "spiffe://c1", "spiffe://c1/", "spiffe://C1/exporter", "spiffe://c1/exporter/",
		"spiffe://c1//exporter",
		"spiffe://c1/../c2/exporter", "spiffe://c1:8443/exporter", "spiffe://user@c1/exporter", "spiffe://c1/exporter?x=1",
		"spiffe://c1/exporter#x",
		"https://c1/exporter", "spiffe:c1/exporter", "spiffe://c1/%65xporter", "spiffe:///exporter",
		"spiffe://c_1.example.org/exporter",
		"spiffe://" + strings.Repeat("c", 300) + "/exporter", "spiffe://c1/\x00", "", "//c1/exporter",
	} {
		f.Add(seed, "", false)
	}
	f.Add("spiffe://c1/exporter", "spiffe://c2/exporter", false)
	f.Add("spiffe://c1/exporter", "", true)
	f.Fuzz(func(t *testing.T, name, second string, isCA bool) {
		cert := &x509.Certificate{IsCA: isCA}
		for _, text := range []string{name, second} {
			if u, err := url.Parse(text); err == nil && text != "" {
				cert.URIs = append(cert.URIs, u)
			}
		}
		ctx := peer.NewContext(t.Context(), &peer.Peer{
			Addr:     &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1},
			AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}},
		})
		// The log must be able to contain any name, too.
		_ = nameOf(cert)
		if err := CheckValidity(cert, time.Now()); err == nil {
			t.Error("a certificate without a time is valid")
		}
		id, err := PeerID(ctx)
		if err != nil {
			return
		}
		if len(cert.URIs) != 1 {
			t.Fatalf("%s of a certificate with %d names", id, len(cert.URIs))
		}
		again, err := spiffeid.FromString(id.String())
		if err != nil || again != id || !strings.EqualFold(id.TrustDomain().Name(), cert.URIs[0].Host) {
			t.Fatalf("%q gave %s (%v)", name, id, err)
		}
		for _, char := range ClusterOf(id) + id.Path() {
			if char <= ' ' || char > '~' || char == '%' || char == '?' || char == '#' {
				t.Fatalf("%q gave %s, with %q in it", name, id, char)
			}
		}
		// Another spelling of an ID must never be accepted as that of a configured cluster.
		if config.ClusterName(ClusterOf(id)) == nil && id == Exporter(ClusterOf(id)) && cert.URIs[0].String() != id.String() {
			t.Fatalf("%q passes for %s", cert.URIs[0], id)
		}
	})
}

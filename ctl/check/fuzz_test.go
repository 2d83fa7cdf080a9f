package check

import (
	"encoding/pem"
	"testing"
	"time"
)

// FuzzBundle: whatever a file of root certificates contains, reading it returns certificates or an error, which can be
// judged.
func FuzzBundle(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte{0x30, 0x82, 0x01, 0x0a}}))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		roots, err := parseCertificates(text)
		if (err == nil) == (len(roots) == 0) {
			t.Fatalf("%d certificates, %v", len(roots), err)
		}
		judgeBundle(Bundle{Cluster: "c2", File: "c2.pem", Roots: roots, Err: err}, time.Unix(1_800_000_000, 0))
	})
}

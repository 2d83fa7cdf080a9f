package identity

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Rotate replaces the certificates and keys of parts, all of them if none is named, with new ones of the same
// authority. Peers need no change. It fails without a change while a rollover that was cut short is to be repeated, and
// for an unknown part.
func Rotate(dir string, parts []string, validity time.Duration, now time.Time) error {
	if len(parts) == 0 {
		parts = Parts
	}
	for _, part := range parts {
		if !slices.Contains(Parts, part) {
			return fmt.Errorf("part %q: use %s", part, strings.Join(Parts, ", "))
		}
	}
	stage, err := StageOf(dir)
	if err != nil {
		return err
	}
	if stage == CutShort {
		return errCutShort(dir)
	}
	ca, err := readAuthority(filepath.Join(dir, caCertFile), filepath.Join(dir, caKeyFile))
	if err != nil {
		return err
	}
	return ca.rotate(dir, parts, validity, now)
}

func (ca *pair) rotate(dir string, parts []string, validity time.Duration, now time.Time) error {
	cluster, err := clusterOf(ca.cert)
	if err != nil {
		return fmt.Errorf("authority in %s: %w", dir, err)
	}
	if validity <= 0 {
		return fmt.Errorf("validity of the certificates (%s): must be above 0", validity)
	}
	if end := ca.cert.NotAfter; now.Add(validity).After(end) {
		return fmt.Errorf("the certificates would outlive their authority, which ends at %s: give them %d days at most, or "+
			"replace the authority (semaphorectl pki rotate-ca --dir %s)",
			end.UTC().Format(time.RFC3339), int(end.Sub(now)/(24*time.Hour)), dir)
	}
	for _, part := range parts {
		leaf, err := ca.issue(IDOf(cluster, part), now, validity)
		if err != nil {
			return err
		}
		if err := leaf.replace(filepath.Join(dir, part, certFile), filepath.Join(dir, part, keyFile)); err != nil {
			return fmt.Errorf("certificate of the %s: %w", part, err)
		}
	}
	return writeBundle(dir)
}

// writeBundle writes the bundle where semaphorectl looks for it.
func writeBundle(dir string) error {
	cluster, bundle, err := Bundle(dir)
	if err != nil {
		return err
	}
	return writeOver(filepath.Join(dir, "semaphorectl", cluster+".pem"), bundle, 0o644)
}

package identity

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kube-semaphore/semaphore/internal/volume"
)

// Stage is the progress of the replacement of an authority. Each step may be taken only when the result of the one
// before it is in use everywhere, which this package cannot see: the operator takes the steps.
type Stage int

// The stages. Both roots are in the bundle from NextTrusted to NextSigns.
const (
	// Steady: the authority is not being replaced.
	Steady Stage = iota
	// NextTrusted, after step 1: the next authority is trusted, and signs nothing yet.
	NextTrusted
	// NextSigns, after step 2: the new authority has signed all certificates, and the old one is still trusted.
	NextSigns
	// CutShort: step 2 was interrupted, and must be repeated.
	CutShort
)

// StageOf returns the stage of the authority in dir. It fails if dir cannot be read.
func StageOf(dir string) (Stage, error) {
	next, err := exists(filepath.Join(dir, filepath.Dir(nextCertFile)))
	if err != nil {
		return 0, err
	}
	old, err := exists(filepath.Join(dir, filepath.Dir(oldCertFile)))
	if err != nil {
		return 0, err
	}
	switch {
	case next && old:
		return CutShort, nil
	case next:
		return NextTrusted, nil
	case old:
		return NextSigns, nil
	}
	return Steady, nil
}

func errCutShort(dir string) error {
	return fmt.Errorf("%s: the replacement of the authority was cut short in its step 2: take that again (semaphorectl "+
		"pki rotate-ca --step 2 --dir %s)", dir, dir)
}

// RotateCA takes one step, 1 to 3, of replacing the authority in dir. It refuses a step out of turn, or a repeated one.
func RotateCA(dir string, step int, v Validity, now time.Time) error {
	stage, err := StageOf(dir)
	if err != nil {
		return err
	}
	// Report a directory that does not exist, or lacks its authority, first.
	cluster, _, err := Bundle(dir)
	if err != nil {
		return err
	}
	switch {
	case step == 1 && stage == Steady:
		return begin(dir, cluster, v, now)
	case step == 2 && (stage == NextTrusted || stage == CutShort):
		return signWithNext(dir, v, now)
	case step == 3 && stage == NextSigns:
		return forgetOld(dir)
	case step < 1 || step > 3:
		return fmt.Errorf("step %d: use 1, 2 or 3", step)
	case stage == CutShort:
		return errCutShort(dir)
	}
	turn := map[Stage]int{Steady: 1, NextTrusted: 2, NextSigns: 3}[stage]
	return fmt.Errorf("step %d is out of turn: the next one is %d", step, turn)
}

func begin(dir, cluster string, v Validity, now time.Time) error {
	if _, err := readAuthority(filepath.Join(dir, caCertFile), filepath.Join(dir, caKeyFile)); err != nil {
		return err
	}
	next, err := NewAuthority(cluster, v.Authority, now)
	if err != nil {
		return err
	}
	if err := next.lasts(v.Certificate, now); err != nil {
		return err
	}
	// Atomically: StageOf decides from the existing files.
	making, err := os.MkdirTemp(dir, ".next-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(making) // nothing remains once it is renamed
	if err := next.write(filepath.Join(making, caCertFile), filepath.Join(making, caKeyFile), writeNew); err != nil {
		return err
	}
	if err := volume.Rename(making, filepath.Join(dir, filepath.Dir(nextCertFile))); err != nil {
		return err
	}
	return writeBundle(dir)
}

// signWithNext continues where an interrupted run stopped: it swaps the authorities, certificate before key, then
// creates all certificates again. The bundle has both roots all the time.
func signWithNext(dir string, v Validity, now time.Time) error {
	at := func(file string) string { return filepath.Join(dir, file) }
	nextCert, err := exists(at(nextCertFile))
	if err != nil {
		return err
	}
	if nextCert { // ca.crt and ca.key are still those that signed until now
		if _, err := readAuthority(at(nextCertFile), at(nextKeyFile)); err != nil {
			return err
		}
		before, err := readAuthority(at(caCertFile), at(caKeyFile))
		if err != nil {
			return err
		}
		if err := before.write(at(oldCertFile), at(oldKeyFile), writeOver); err != nil {
			return err
		}
		if err := volume.Rename(at(nextCertFile), at(caCertFile)); err != nil {
			return err
		}
	}
	if nextKey, err := exists(at(nextKeyFile)); err != nil {
		return err
	} else if nextKey {
		if err := volume.Rename(at(nextKeyFile), at(caKeyFile)); err != nil {
			return err
		}
	}
	ca, err := readAuthority(at(caCertFile), at(caKeyFile))
	if err != nil {
		return err
	}
	old, err := readCertificate(at(oldCertFile))
	if err != nil {
		return fmt.Errorf("the authority that signed before: %w", err)
	}
	if old.Equal(ca.cert) {
		return fmt.Errorf("%s and %s are the same authority: there is none that could follow", at(oldCertFile),
			at(caCertFile))
	}
	if err := ca.rotate(dir, Parts, v.Certificate, now); err != nil {
		return err
	}
	return os.Remove(at(filepath.Dir(nextCertFile)))
}

// forgetOld removes the old root from the bundle, and the old key.
func forgetOld(dir string) error {
	ca, err := readCertificate(filepath.Join(dir, caCertFile))
	if err != nil {
		return err
	}
	cluster, err := clusterOf(ca)
	if err != nil {
		return err
	}
	for _, part := range Parts {
		leaf, err := readCertificate(filepath.Join(dir, part, certFile))
		if err != nil {
			return fmt.Errorf("certificate of the %s: %w", part, err)
		}
		if err := leaf.CheckSignatureFrom(ca); err != nil {
			return fmt.Errorf("the certificate of the %s is not of the new authority, and would be refused without the old "+
				"one: semaphorectl pki rotate --dir %s, and apply it, first (%w)", part, dir, err)
		}
	}
	// The bundle first: after an interruption the step must be repeated.
	if err := writeOver(filepath.Join(dir, "semaphorectl", cluster+".pem"), pemOf(ca), 0o644); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(dir, filepath.Dir(oldCertFile)))
}

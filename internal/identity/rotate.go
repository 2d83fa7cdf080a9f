package identity

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Named returns the parts to rotate, all if none is named. It fails if one of them is no part.
func Named(parts []string) ([]string, error) {
	if len(parts) == 0 {
		return Parts, nil
	}
	for _, part := range parts {
		if !slices.Contains(Parts, part) {
			return nil, fmt.Errorf("part %q: use %s", part, strings.Join(Parts, ", "))
		}
	}
	return parts, nil
}

// Rotate replaces the certificates and keys of parts, all of them if none is named, with new ones of the same
// authority. Peers need no change. It fails without a change while a rollover that was cut short is to be repeated, and
// for an unknown part.
func Rotate(dir string, parts []string, validity time.Duration, now time.Time) error {
	parts, err := Named(parts)
	if err != nil {
		return err
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

func (a *Authority) rotate(dir string, parts []string, validity time.Duration, now time.Time) error {
	err := a.certify(dir, parts, validity, now, writeOver)
	if errors.Is(err, errOutlives) {
		return fmt.Errorf("%w, or replace the authority (semaphorectl pki rotate-ca --dir %s)", err, dir)
	}
	if err != nil {
		return err
	}
	return writeBundle(dir)
}

// certify creates the certificates of parts in dir, by writeNew or writeOver.
func (a *Authority) certify(dir string, parts []string, validity time.Duration, now time.Time,
	write func(string, []byte, os.FileMode) error) error {
	for _, part := range parts {
		cert, key, err := a.Issue(part, validity, now)
		if err != nil {
			return err
		}
		at := filepath.Join(dir, part)
		if err := writePair(filepath.Join(at, certFile), filepath.Join(at, keyFile), cert, key, write); err != nil {
			return fmt.Errorf("certificate of the %s: %w", part, err)
		}
	}
	return nil
}

// writeBundle writes the bundle where semaphorectl looks for it.
func writeBundle(dir string) error {
	cluster, bundle, err := Bundle(dir)
	if err != nil {
		return err
	}
	return writeOver(filepath.Join(dir, "semaphorectl", cluster+".pem"), bundle, 0o644)
}

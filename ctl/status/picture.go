// Package status has the verbs for a first look: one verdict about the selected clusters, each part's status, the
// picture of them, and the sets of a broker; the parts' objects, as lists; and the verbs that order something of
// running parts: drain, undrain, release, and another key.
package status

import (
	"errors"
	"io"
	"slices"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	"github.com/kube-semaphore/semaphore/internal/program"
)

var pictures = []string{"svg", "dot", "mermaid"}

func draw(w io.Writer, m *mesh.Mesh, output string) error {
	p := mesh.PictureOf(m)
	formats := map[string]func() string{"svg": p.SVG, "dot": p.DOT, "mermaid": p.Mermaid}
	_, err := io.WriteString(w, formats[output]())
	return err
}

// Exit returns an error, with its exit code, if no part was reached or a shown mesh is not well.
func Exit(facts []mesh.Facts, m *mesh.Mesh) error {
	reached := func(f mesh.Facts) bool { return len(f.Parts) > 0 }
	switch {
	case !slices.ContainsFunc(facts, reached):
		return errors.New(show.Printable(m.Verdict))
	case !m.Well:
		return program.ExitError{Code: show.ExitWrong, Err: errors.New(show.Printable(m.Verdict))}
	}
	return nil
}

// Package cli is how semaphorectl prints and how it ends: nothing that another cluster made up commands a terminal, and each exit code
// has one meaning.
//
// Text goes in, text that can be printed comes out. It imports nothing of ours.
package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	"sigs.k8s.io/yaml"
)

// Exit codes. 0 is that all is well; 1 is wrong use, and a part that cannot be asked.
const (
	// ExitWrong is that a part answers and something is wrong.
	ExitWrong = 2
	// ExitWarnings and ExitErrors are those of check. A check that is used wrongly is an error, too.
	ExitWarnings = 1
	ExitErrors   = 2
)

// Document is JSON as it is printed, as itself or as YAML, so that nothing in it that another cluster made up commands a
// terminal. In JSON a character that cannot be printed is escaped (RFC 8259, section 7), which programs read as it was; YAML
// has none for what it takes for printable, such as U+202E, so that there it becomes a space, as in tables.
func Document(data []byte, output string) (string, error) {
	if output != "yaml" {
		return strings.TrimSpace(escaped(string(data))), nil
	}
	lines, err := yaml.JSONToYAML([]byte(Printable(string(data))))
	return strings.TrimSpace(string(lines)), err
}

// PrintDocument prints JSON as itself or as YAML.
func PrintDocument(w io.Writer, data []byte, output string) error {
	text, err := Document(data, output)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, text)
	return err
}

// escaped is JSON without characters that cannot be printed: outside of strings it has none but line ends.
func escaped(text string) string {
	var out strings.Builder
	for _, r := range text {
		switch {
		case unicode.IsPrint(r) || r == '\n':
			out.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// PrintLines prints a text of several lines, each printable.
func PrintLines(w io.Writer, text string) error {
	for line := range strings.Lines(text) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(Printable(line), " ")); err != nil {
			return err
		}
	}
	return nil
}

// Printable keeps what another cluster made up from commanding the terminal: control characters, and
// those that turn the direction of text, become spaces.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

// Package show defines how semaphorectl prints and exits: text from another cluster cannot control a terminal, and each
// exit code has one meaning. It has the output that verbs share: findings, tables, times, events, and their formats and
// completions.
//
// It sends no request. A verb need not look at the error of a write to its output: program.Main ends with the first.
package show

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"

	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// The exit codes of verbs that did their work: ExitWrong if they found a fault, ExitUnknown if they found none and did
// not look at everything. 0 means that all is well, 1 that the verb was used wrongly or could not do its work. All
// verbs use these codes.
const (
	ExitWrong   = 2
	ExitUnknown = 3
)

type Colour int

// Colours as terminals show them (ECMA-48, SGR).
const (
	Red    Colour = 31
	Green  Colour = 32
	Yellow Colour = 33
)

// Paint colours a text for a terminal. It leaves the text as it is for a file, a pipe, a terminal without colours
// (TERM=dumb), and a person who wants none (https://no-color.org).
func Paint(w io.Writer, c Colour, text string) string {
	f, ok := w.(interface{ Fd() uintptr }) // a file, or program.Clean
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(f.Fd())) {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", c, text)
}

// Clear empties a terminal's screen (ECMA-48, CUP and ED), and reports whether w is one. No text that is printed can do
// that, so it goes past program.Clean.
func Clear(w io.Writer) bool {
	if Paint(w, Red, "") == "" {
		return false
	}
	if clean, ok := w.(interface{ Raw() *os.File }); ok {
		w = clean.Raw()
	}
	_, err := io.WriteString(w, "\x1b[H\x1b[2J")
	return err == nil
}

// PrintDocument prints JSON as JSON or as YAML, so that no text from another cluster can control a terminal. JSON
// escapes an unprintable character (RFC 8259, section 7), so that programs read the original; YAML has no escape for
// characters that it considers printable, such as U+202E, so these become spaces, as in tables. It fails if w does, and
// for data that YAML cannot have.
func PrintDocument(w io.Writer, data []byte, output string) error {
	text := escaped(string(data))
	if output == "yaml" {
		lines, err := yaml.JSONToYAML([]byte(Printable(string(data))))
		if err != nil {
			return err
		}
		text = string(lines)
	}
	_, err := fmt.Fprintln(w, strings.TrimSpace(text))
	return err
}

// PrintValue prints a value as JSON or as YAML. It fails if JSON cannot hold it, or w fails.
func PrintValue(w io.Writer, value any, output string) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return PrintDocument(w, data, output)
}

// PrintMessage prints a message as JSON or as YAML, with the names of the protocol. It fails if w does.
func PrintMessage(w io.Writer, m proto.Message, output string) error {
	data, err := protojson.MarshalOptions{UseProtoNames: true, Indent: "  "}.Marshal(m)
	if err != nil {
		return err
	}
	return PrintDocument(w, data, output)
}

// escaped escapes unprintable characters in JSON. Outside of strings it has none but line ends.
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

// PrintLines prints a text of several lines, each printable. It fails if w does.
func PrintLines(w io.Writer, text string) (err error) {
	for line := range strings.Lines(text) {
		if err == nil {
			_, err = fmt.Fprintln(w, strings.TrimRight(Printable(line), " "))
		}
	}
	return err
}

// Printable keeps text from another cluster from controlling the terminal: it replaces control characters, and those
// that change the direction of text, by spaces.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

// LineWidth is the maximum width of a line for a person, in columns.
const LineWidth = 100

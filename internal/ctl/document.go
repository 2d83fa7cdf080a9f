package ctl

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	"sigs.k8s.io/yaml"
)

// document is JSON as it is printed, as itself or as YAML, so that nothing in it that another cluster made up commands a
// terminal. In JSON a character that cannot be printed is escaped (RFC 8259, section 7), which programs read as it was; YAML
// has none for what it takes for printable, such as U+202E, so that there it becomes a space, as in tables.
func document(data []byte, output string) (string, error) {
	if output != "yaml" {
		return strings.TrimSpace(escaped(string(data))), nil
	}
	lines, err := yaml.JSONToYAML([]byte(printable(string(data))))
	return strings.TrimSpace(string(lines)), err
}

// printDocument prints JSON as itself or as YAML.
func printDocument(w io.Writer, data []byte, output string) error {
	text, err := document(data, output)
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

package testkit

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// OneLine checks that clean turns any text that another cluster may send into one line of valid, printable text of at
// most most bytes.
func OneLine(t testing.TB, most int, clean func(text string) string) {
	t.Helper()
	for _, text := range []string{"a\nb\r\tc", "\x1b[31mred\x07", "\xff\xfe\xc3", "\u202eevil\u2028", "\x00",
		strings.Repeat("ä", 40_000), "x" + strings.Repeat("€", 40_000), strings.Repeat("\xff", 40_000)} {
		got := clean(text)
		if len(got) > most || !utf8.ValidString(got) ||
			strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%.40q became %d bytes, %.60q", text, len(got), got)
		}
	}
}

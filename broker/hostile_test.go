package broker

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestHostileText: what another cluster said becomes one bounded line of printable, valid text.
func TestHostileText(t *testing.T) {
	for _, text := range []string{"a\nb\r\tc", "\x1b[31mred\x07", "\xff\xfe\xc3", "\u202eevil\u2028", "\x00",
		strings.Repeat("ä", 40_000), "x" + strings.Repeat("€", 40_000), strings.Repeat("\xff", 40_000)} {
		got := because("lost", &semaphorev1.LinkStatus{LastError: text})
		if len(got) > len("lost: ")+maxBecause || !utf8.ValidString(got) ||
			strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%.40q became %d bytes, %.60q", text, len(got), got)
		}
	}
}

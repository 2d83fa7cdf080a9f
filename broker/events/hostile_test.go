package events

import (
	"log/slog"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// TestHostileText: what another cluster said becomes one bounded line of printable, valid text.
func TestHostileText(t *testing.T) {
	for _, text := range []string{"a\nb\r\tc", "\x1b[31mred\x07", "\xff\xfe\xc3", "\u202eevil\u2028", "\x00",
		strings.Repeat("ä", 40_000), "x" + strings.Repeat("€", 40_000), strings.Repeat("\xff", 40_000)} {
		e := New(nil, "mirrors", nil, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		e.Warn("", finding.Restored, text)
		next, _, _, ok := e.next("")
		if !ok {
			t.Fatalf("%.40q: no Event waits", text)
		}
		got := next.event.Note
		if len(got) > maxEventNote || !utf8.ValidString(got) ||
			strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%.40q became %d bytes, %.60q", text, len(got), got)
		}
	}
}

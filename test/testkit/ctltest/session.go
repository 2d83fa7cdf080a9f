package ctltest

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kube-semaphore/semaphore/ctl/show"
)

// session records what a person at a terminal sees of several calls: the command, its output and its exit code. Texts
// that differ between two runs are replaced.
type session struct {
	t       *testing.T
	text    strings.Builder
	replace *strings.Replacer
}

// differs matches times, durations, fingerprints and keys.
var differs = []struct {
	find *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`/tmp/\S+\.sock`), "SOCKET"},
	{regexp.MustCompile(`\b\d+h\d+m\d+s\b`), "DURATION"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d( \d\d:\d\d UTC|T\d\d:\d\d:\d\dZ)?`), "DATE"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d\.\d{3}`), "TIME"},
	{regexp.MustCompile(`[+-]\d+(\.\d+)?[mµ]?s\b`), "+LAG"},
	{regexp.MustCompile(`\b[0-9a-f]{16}\b`), "FINGERPRINT"},
	{regexp.MustCompile(`(?s)(-----BEGIN [A-Z ]+-----).*?(-----END)`), "$1…$2"},
	{regexp.MustCompile(`(tls\.(?:crt|key)|ca\.crt|[a-z0-9]+\.pem): [A-Za-z0-9+/=]{40,}`), "$1: BASE64"},
}

func (s *session) Note(text string) {
	text = s.replace.Replace(text)
	for _, d := range differs {
		text = d.find.ReplaceAllString(text, d.by)
	}
	s.text.WriteString(text + "\n")
}

// Call runs a verb. The hidden arguments are not recorded.
func (s *session) Call(verb string, hidden ...string) {
	s.t.Helper()
	var out bytes.Buffer
	code, err := execute(s.t, &out, &out, append(strings.Fields(verb), hidden...))
	if err != nil {
		fmt.Fprintln(&out, "semaphorectl:", err)
	}
	fmt.Fprintf(&s.text, "$ semaphorectl %s\n", s.replace.Replace(verb))
	if out.Len() > 0 {
		s.Note(strings.TrimSuffix(out.String(), "\n"))
	}
	if code != 0 {
		fmt.Fprintf(&s.text, "(exit code %d)\n", code)
	}
	s.text.WriteString("\n")
}

// Golden compares the calls with the file, and checks the width of lines that are for a person; lines of a document for
// a program may be longer.
func (s *session) Golden(name string, document *regexp.Regexp) {
	s.t.Helper()
	Golden(s.t, name, s.text.String())
	for line := range strings.Lines(s.text.String()) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "semaphorectl: ") {
			continue // an error is one line, for logs
		}
		if n := utf8.RuneCountInString(line); n > show.LineWidth && (document == nil || !document.MatchString(line)) {
			s.t.Errorf("%s: a line of %d columns: %s", name, n, line)
		}
	}
}

func NewSession(t *testing.T, replace ...string) *session {
	return &session{t: t, replace: strings.NewReplacer(replace...)}
}

package docs_test

import (
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxLine is how many characters a line of a document has at most. Tables, code blocks, images, and lines of one word that cannot be
// broken are exempt.
const maxLine = 120

// banned are phrasings that do not belong into a document, each with what to write in its place. docs/glossary.md has the words of the
// project. A match is of whole words, case ignored, and may be broken across two lines.
var banned = map[string]string{
	`(is|are|was|were|be|been|being) told`:       "say who reports, sends or receives it",
	`told (of|by|to|from|whole|anew)`:            "report, send, export, publish",
	`tells? (of|that|it|which|how|when|the one)`: "report, show, send",
	`told`:                            "report, show, send, receive",
	`anew`:                            "again",
	`lets? go`:                        "release, remove",
	`held back`:                       "retained",
	`holds? back`:                     "retain, delay",
	`out of use`:                      "not used",
	`as (it|they) stands?`:            "unchanged",
	`stands? (by|with a|on|there)`:    "exists, confirms",
	`(what|that) stood`:               "what existed",
	`whoever`:                         "a person who, an attacker who, everybody who",
	`(what|which) becomes? of`:        "what happens to",
	`is no more`:                      "no longer exists",
	`not any more`:                    "no longer",
	`put(s|ting)? right`:              "heal, repair",
	`mend(s|ed|ing)?`:                 "fix, repair",
	`for ever`:                        "permanently",
	`nobody is`:                       "no cluster gets, no agent learns",
	`goes? on`:                        "continue",
	`went on`:                         "continued",
	`comes? in at once`:               "is added immediately",
	`takes? over from`:                "replace",
	`is (another's|theirs|ours)`:      "belongs to",
	`look(s|ed|ing)? (after|whether)`: "check",
	`bears?`:                          "has",
	`thereof`:                         "of it",
	`whereupon`:                       "then",
	`are rid`:                         "remove",
}

// notRewritten are documents that may use any words: decisions are a record of their time, the simulation's page lists its faults, and the
// code of conduct is not ours.
func notRewritten(document string) bool {
	return strings.HasPrefix(document, "docs/adr/") || document == "sim/README.md" || document == "CODE_OF_CONDUCT.md" ||
		slices.Contains(later, document)
}

// later are documents that others change at this time.
var later = []string{"docs/install.md", "docs/security.md"}

// TestWords holds the documents to plain words and short lines.
func TestWords(t *testing.T) {
	words := regexp.MustCompile(`\b(?:` + strings.ReplaceAll(strings.Join(slices.Sorted(maps.Keys(banned)), "|"), " ", `\s+`) + `)\b`)
	out, err := exec.Command("git", "-C", "..", "ls-files", "*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	documents := 0
	for _, document := range strings.Fields(string(out)) {
		if notRewritten(document) {
			continue
		}
		documents++
		all := lines(t, document)
		for n, line := range all {
			if utf8.RuneCountInString(line) > maxLine && !exemptFromLength(line) {
				t.Errorf("%s:%d: %d characters, and a line has %d at most", document, n+1, utf8.RuneCountInString(line), maxLine)
			}
			all[n] = prose(document, line)
		}
		text := strings.ToLower(strings.Join(all, "\n"))
		for _, at := range words.FindAllStringIndex(text, -1) {
			phrase := text[at[0]:at[1]]
			t.Errorf("%s:%d: %q; better: %s", document, 1+strings.Count(text[:at[0]], "\n"), phrase, better(phrase))
		}
	}
	if documents < 20 {
		t.Errorf("%d documents were found", documents)
	}
}

// better is what to write in place of a banned phrasing.
func better(phrase string) string {
	for _, one := range slices.Sorted(maps.Keys(banned)) {
		if regexp.MustCompile(`^(?:` + strings.ReplaceAll(one, " ", `\s+`) + `)$`).MatchString(phrase) {
			return banned[one]
		}
	}
	return "docs/glossary.md"
}

func exemptFromLength(line string) bool {
	text := strings.TrimSpace(line)
	return strings.HasPrefix(text, "|") || strings.HasPrefix(text, "![") || strings.HasPrefix(text, "<!--") ||
		!strings.Contains(text, " ") || strings.Count(text, "`") == 2 && strings.HasPrefix(text, "`") ||
		regexp.MustCompile(`^\[[^\]]+\]: `).MatchString(text)
}

var (
	span   = regexp.MustCompile("`[^`]*`")
	target = regexp.MustCompile(`\]\([^)]*\)`)
)

// prose is a line without what the code says and not the writer: code spans, targets of links, help texts of metrics, and the column of
// the glossary that lists the words not to use.
func prose(document, line string) string {
	if document == "docs/metrics.md" && strings.HasPrefix(line, "| `semaphore_") {
		return ""
	}
	if document == "docs/glossary.md" && strings.HasPrefix(line, "|") {
		line = line[:strings.LastIndex(strings.TrimSuffix(line, "|"), "|")]
	}
	return target.ReplaceAllString(span.ReplaceAllString(line, "x"), "]")
}

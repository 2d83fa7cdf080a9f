package docs_test

import (
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// maxLine is how many characters a line of a document has at most. Tables, code blocks, images, and lines of one word
// that cannot be broken are exempt.
const maxLine = 120

// banned are phrasings that do not belong into a document, each with what to write in its place. docs/glossary.md has
// the words of the project. A match is of whole words, case ignored, and may be broken across two lines.
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
	`(what|which) bec[ao]mes? of`:     "what happens to, the result of",
	`held up`:                         "delayed",
	`set right`:                       "heal, repair",
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

// bannedInCode are phrasings that do not belong into comments, log messages, errors and help texts either, beside
// banned.
var bannedInCode = map[string]string{
	`takes? note`:              "records",
	`imports? nothing of ours`: "imports no other package of semaphore",
}

// allowedInCode are phrasings that have a plain meaning in code, where "ours" is what semaphore owns.
var allowedInCode = []string{`is (another's|theirs|ours)`}

// clause matches a sentence with a clause in place of a noun as its subject, up to its end; a question is none. Write
// "A route that X learned" and not "what X learned".
var clause = regexp.MustCompile(`\bWhat\s[^.?:;]*[.?:;]`)

// clauses are the sentences of a text that clause matches, questions excepted.
func clauses(text string) []string {
	return slices.DeleteFunc(clause.FindAllString(text, -1), func(s string) bool { return strings.HasSuffix(s, "?") })
}

// TestWords holds the documents to plain words and short lines; the code of conduct is a copy and may use any.
func TestWords(t *testing.T) {
	words := phrasesOf(banned)
	documents := 0
	for _, document := range tracked(t, "*.md") {
		if document == "CODE_OF_CONDUCT.md" {
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
		for _, sentence := range clauses(sentencesOf(all)) {
			t.Errorf("%s: %q; better: a noun as the subject", document, sentence)
		}
		text := strings.ToLower(strings.Join(all, "\n"))
		for _, at := range words.FindAllStringIndex(text, -1) {
			phrase := text[at[0]:at[1]]
			t.Errorf("%s:%d: %q; better: %s", document, 1+strings.Count(text[:at[0]], "\n"), phrase, betterOf(banned, phrase))
		}
	}
	if documents < 20 {
		t.Errorf("%d documents were found", documents)
	}
}

// betterOf is what to write in place of a banned phrasing.
func betterOf(phrases map[string]string, phrase string) string {
	for _, one := range slices.Sorted(maps.Keys(phrases)) {
		if regexp.MustCompile(`^(?:` + strings.ReplaceAll(one, " ", `\s+`) + `)$`).MatchString(phrase) {
			return phrases[one]
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

// prose is a line without what the code says and not the writer: code spans, targets of links, help texts of metrics,
// and the column of the glossary that lists the words not to use.
func prose(document, line string) string {
	if document == "docs/metrics.md" && strings.HasPrefix(line, "| `semaphore_") {
		return ""
	}
	if document == "docs/glossary.md" && strings.HasPrefix(line, "|") {
		line = line[:strings.LastIndex(strings.TrimSuffix(line, "|"), "|")]
	}
	return target.ReplaceAllString(span.ReplaceAllString(line, "x"), "]")
}

// sentencesOf is the running text of a document: without headings, tables, code and comments.
func sentencesOf(all []string) string {
	var text []string
	code := false
	for _, line := range all {
		start := strings.TrimSpace(line)
		if strings.HasPrefix(start, "```") {
			code = !code
		} else if !code && !slices.ContainsFunc([]string{"#", "|", "<!--"}, func(mark string) bool {
			return strings.HasPrefix(start, mark)
		}) {
			text = append(text, line)
		}
	}
	return strings.Join(text, "\n")
}

// TestWordsOfDefinitions holds messages, manifests, charts, dashboards, pictures and the Makefile to plain words, and
// their comments to the length of a line: a line of one word, such as a link, may be longer.
func TestWordsOfDefinitions(t *testing.T) {
	words := phrasesOf(banned)
	files := tracked(t, "*.proto", "*.yaml", "*.yml", "*.tpl", "*.json", "*.svg", "Makefile")
	comment := regexp.MustCompile(`^\s*(#|//) `)
	for _, file := range files {
		all := lines(t, file)
		var comments []string
		for n, line := range all {
			_, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			if comment.MatchString(line) {
				comments = append(comments, text)
			}
			if comment.MatchString(line) && utf8.RuneCountInString(line) > maxLine && strings.Contains(text, " ") {
				t.Errorf("%s:%d: %d characters, and a line has %d at most", file, n+1, utf8.RuneCountInString(line), maxLine)
			}
		}
		for _, sentence := range clauses(strings.Join(comments, "\n") + ".") {
			t.Errorf("%s: %q; better: a noun as the subject", file, sentence)
		}
		// A phrase may be broken across two lines of a comment, and across two texts of a picture.
		text := strings.ToLower(regexp.MustCompile(`(?m)^[ \t]*(#|//) ?`).ReplaceAllString(strings.Join(all, "\n"), ""))
		text = regexp.MustCompile(`</text>\s*<text[^>]*>`).ReplaceAllStringFunc(text, func(between string) string {
			return " " + strings.Repeat("\n", strings.Count(between, "\n"))
		})
		for _, at := range words.FindAllStringIndex(text, -1) {
			phrase := text[at[0]:at[1]]
			t.Errorf("%s:%d: %q; better: %s", file, 1+strings.Count(text[:at[0]], "\n"), phrase, betterOf(banned, phrase))
		}
	}
	if len(files) < 100 {
		t.Errorf("%d files were found", len(files))
	}
}

// phrasesOf matches any of some phrasings, also across a line break.
func phrasesOf(phrases map[string]string) *regexp.Regexp {
	return regexp.MustCompile(`\b(?:` + strings.ReplaceAll(strings.Join(slices.Sorted(maps.Keys(phrases)), "|"), " ",
		`\s+`) + `)\b`)
}

// TestWordsOfCode holds comments and texts of the program and its tests to plain words, and lines to their length. Only
// a marker may be longer, because controller-gen reads one line.
func TestWordsOfCode(t *testing.T) {
	phrases := maps.Clone(banned)
	maps.Copy(phrases, bannedInCode)
	for _, one := range allowedInCode {
		delete(phrases, one)
	}
	words := phrasesOf(phrases)
	files := 0
	for _, file := range tracked(t, "*.go") {
		if strings.HasSuffix(file, ".pb.go") {
			continue
		}
		files++
		set, parsed := parsed(t, file)
		exempt := map[int]bool{}
		check := func(at token.Pos, text string) {
			if _, ok := phrases[text]; ok || slices.Contains(allowedInCode, text) { // it is the list itself
				return
			}
			for _, phrase := range words.FindAllString(firstLower(text), -1) {
				t.Errorf("%s: %q; better: %s", set.Position(at), phrase, betterOf(phrases, phrase))
			}
		}
		for _, group := range parsed.Comments {
			check(group.Pos(), group.Text())
			for _, sentence := range clauses(group.Text()) {
				t.Errorf("%s: %q; better: a noun as the subject", set.Position(group.Pos()), sentence)
			}
			for _, c := range group.List {
				if strings.HasPrefix(c.Text, "// +") || strings.HasPrefix(c.Text, "//go:") {
					exempt[set.Position(c.Pos()).Line] = true
				}
			}
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			if text, err := strconv.Unquote(literal.Value); err == nil && strings.Contains(strings.TrimSpace(text), " ") {
				check(literal.Pos(), text)
			}
			return true
		})
		for n, line := range strings.Split(read(t, file), "\n") {
			if utf8.RuneCountInString(line) > maxLine && !exempt[n+1] {
				t.Errorf("%s:%d: %d characters, and a line has %d at most", file, n+1, utf8.RuneCountInString(line), maxLine)
			}
		}
	}
	if files < 500 {
		t.Errorf("%d files were found", files)
	}
}

// firstLower is a text with the first letter of each word in lower case, so that words in capitals, which are headings
// of tables, do not match.
func firstLower(text string) string {
	previous := ' '
	return strings.Map(func(r rune) rune {
		first := !unicode.IsLetter(previous)
		previous = r
		if first {
			return unicode.ToLower(r)
		}
		return r
	}, text)
}

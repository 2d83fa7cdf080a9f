package finding

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCodes: each code is CamelCase, as the reasons of Events and conditions are, so that it is one word as an
// anchor and the value of a label too. It has a meaning and a level. No two codes differ by the case of letters alone,
// or have one meaning: one cause has one code.
func TestCodes(t *testing.T) {
	word := regexp.MustCompile(`^[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*$`)
	codes, meanings := map[string]Code{}, map[string]Code{}
	all := All()
	if len(all) < 90 {
		t.Errorf("%d codes", len(all))
	}
	for _, d := range all {
		if !word.MatchString(string(d.Code)) || d.Meaning == "" || d.Area == "" || d.Code.Level() != d.Level {
			t.Errorf("%+v", d)
		}
		if other, is := codes[strings.ToLower(string(d.Code))]; is {
			t.Errorf("%s and %s are one word", d.Code, other)
		}
		if other, is := meanings[d.Meaning]; is {
			t.Errorf("%s and %s have one meaning", d.Code, other)
		}
		codes[strings.ToLower(string(d.Code))], meanings[d.Meaning] = d.Code, d.Code
		if !slices.Contains([]Level{OK, NotChecked, Warning, Error}, d.Level) {
			t.Errorf("%s has the level %q", d.Code, d.Level)
		}
	}
	if len(Of(Refusals)) != 17 || Of(Refusals)[0] != CIDROutsidePodSubnets {
		t.Errorf("the refusals: %v", Of(Refusals))
	}
	if level := Code("not-defined").Level(); level != Error {
		t.Errorf("a code that is not defined has the level %s", level)
	}
}

// TestACodeIsDefinedOnce: no two findings have the same code.
func TestACodeIsDefinedOnce(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a second definition of a code was accepted")
		}
	}()
	define(Checks, Error, OverLimit, "another meaning")
}

// TestTexts: the lines of a status are those of its findings, in their order and complete. Those that do not fit are
// counted.
func TestTexts(t *testing.T) {
	long := strings.Repeat("ä", 1000)
	found := slices.Concat(Lines(DrainsFailed, "", []string{"first", "second", "third", "fourth"}),
		[]Finding{New(NoAgent, "", 2, "in another field")}, Line(PeersNotStored, "", ""),
		Detail(Retained, "c2", []string{"a\xffb"}), Line(PeersNotStored, "", long))
	got := Texts(found)
	if want := []string{"first", "second", "third", "fourth", "a�b", strings.Repeat("ä", 250) +
		"…"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if merged := Merge(found); len(merged) != 4 || len(Texts(merged)) != 0 {
		t.Errorf("merged: %+v", merged)
	}
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	for _, times := range [][]time.Time{{early, late}, {late, early}, {{}, early}} {
		all := []Finding{New(NoAgent, "c2", 1).At(times[0]), New(NoAgent, "c2", 1).At(times[1])}
		if merged := Merge(all); len(merged) != 1 || merged[0].Count != 2 || !merged[0].Since.Equal(early) {
			t.Errorf("merged of %v: %+v", times, merged)
		}
	}
	var many []string
	for range 10_000 {
		many = append(many, long)
	}
	got = Texts(Lines(DrainsFailed, "", many))
	size := 0
	for _, line := range got {
		size += len(line)
	}
	if last := fmt.Sprintf("%d more lines: too many for one status", 10_001-len(got)); got[len(got)-1] != last ||
		size > 5<<19+100 || size < 5<<19-1000 {
		t.Errorf("%d lines of %d bytes, the last %q", len(got), size, got[len(got)-1])
	}
}

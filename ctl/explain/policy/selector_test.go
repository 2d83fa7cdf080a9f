package policy

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestSelectors(t *testing.T) {
	labels := map[string]string{"app": "db", "a.b/c-d_e": "x'y", "empty": "", "in": "1", "has": "2"}
	long := strings.Repeat("a", maxLabel)
	for _, c := range []struct {
		text string
		want bool
	}{
		{"", true},
		{" \t", true},
		{"all()", true},
		{"!all( \n)", false},
		{"global()", true},
		{"app == 'db'", true},
		{`app=="db"`, true},
		{"app == 'd'", false},
		{"none == ''", false},
		{"empty == ''", true},
		{"app != 'db'", false},
		{"app != 'd'", true},
		{"none != ''", true},
		{"none != 'x'", true},
		{`a.b/c-d_e == "x'y"`, true},
		{"in == '1' && has == '2'", true},
		{"has(app)", true},
		{"has( none\n)", false},
		{"! has(none)", true},
		{"!!has(app)", true},
		{"app in {'x', 'db'}", true},
		{"app in{'x',}", false},
		{"app in {}", false},
		{"none in {''}", false},
		{"app not in {'x', 'db'}", false},
		{"app notin {'x'}", true},
		{"none not\n in {'x'}", true},
		{"empty not in {''}", false},
		{"app contains 'b'", true},
		{"app contains 'c'", false},
		{"none contains ''", false},
		{"app starts with 'd'", true},
		{"app startswith 'b'", false},
		{"app ends with 'b'", true},
		{"app ends  with 'd'", false},
		{"has(app) || has(x) && has(y)", true},
		{"(has(app) || has(x)) && has(y)", false},
		{"has(x) && has(y) || has(app)", true},
		{"!(has(app) && has(x))", true},
		{"!has(x) && has(app)", true},
		{"app == 'all()' || app == 'x && y'", false},
		{long + "contains 'x' || has(" + long + ") || has(app)", true},
		{strings.Repeat("(has(app)) && ", 2*MaxSelectorDepth) + "has(app)", true},
		{strings.Repeat("(", MaxSelectorDepth) + "has(app)" + strings.Repeat(")", MaxSelectorDepth), true},
	} {
		s, err := ParseSelector(c.text, Scope{})
		if err != nil || s(labels) != c.want {
			t.Errorf("%.80q: %v, want %v", c.text, err, c.want)
		}
	}
}

// TestScope: a selector of namespaces means labels with a prefix, and all() and global() what Calico has them mean.
func TestScope(t *testing.T) {
	in := Scope{Prefix: "ns.", All: Has("namespace"), Global: Not(In("namespace", sets.New("a", "b")))}
	for _, c := range []struct {
		text   string
		labels string
		want   bool
	}{
		{"team == 'red'", "ns.team=red", true},
		{"team == 'red'", "team=red", false},
		{"has(team)", "ns.team=red", true},
		{"team not in {'red'}", "ns.team=red", false},
		{"!has(team)", "team=red", true},
		{"all()", "namespace=c", true},
		{"", "team=red", false},
		{"all()", "ns.namespace=a", false},
		{"global()", "namespace=a", false},
		{"global()", "namespace=c", true},
		{"global() || team == 'red'", "namespace=b", false},
	} {
		s, err := ParseSelector(c.text, in)
		name, value, _ := strings.Cut(c.labels, "=")
		if err != nil || s(map[string]string{name: value}) != c.want {
			t.Errorf("%q of %s: %v, want %v", c.text, c.labels, err, c.want)
		}
	}
}

// TestErrors: an error says where and what.
func TestErrors(t *testing.T) {
	long := strings.Repeat("a", maxLabel)
	for _, c := range []struct {
		text, want string
	}{
		{"app ==", "position 7: the selector ends where a value in quotes is expected"},
		{"app = 'db'", "position 5: ==, !=, in, not in, contains, starts with or ends with is expected"},
		{"app", "position 4: the selector ends where ==, !=, in, not in, contains, starts with or ends with is expected"},
		{"app == db", "position 8: a value in quotes is expected"},
		{"app == 'db", "position 8: the quote that begins here does not end"},
		{"app == 'db' app", "position 13: &&, || or the end is expected"},
		{"app == 'db' & x == 'y'", "position 13: &&, || or the end is expected"},
		{"app == 'db' && ", "position 16: the selector ends where a label, has(), all(), global() or ( is expected"},
		{"|| has(x)", "position 1: a label, has(), all(), global() or ( is expected"},
		{"\nhas(x)", "position 1: a label, has(), all(), global() or ( is expected"},
		{"\x00", "position 1: a label, has(), all(), global() or ( is expected"},
		{"has(x) &&\nhas(y)", "position 10: a label, has(), all(), global() or ( is expected"},
		{"'app' == 'db'", "position 1: a label, has(), all(), global() or ( is expected"},
		{"(has(x)", "position 8: the selector ends where &&, || or ) is expected"},
		{"(has(x) has(y))", "position 9: &&, || or ) is expected"},
		{"has(x))", "position 7: &&, || or the end is expected"},
		{"has (x)", "position 5: ==, !=, in, not in, contains, starts with or ends with is expected"},
		{"has()", "position 5: a label is expected"},
		{"has(\vx)", "position 5: a label is expected"},
		{"has('x')", "position 5: a label is expected"},
		{"has(x", "position 6: the selector ends where ) is expected"},
		{"has(x y)", "position 7: ) is expected"},
		{"all(x)", "position 5: ) is expected"},
		{"any(x)", `position 4: there is no function "any"`},
		{"app in 'x'", "position 8: { is expected"},
		{"app in {,}", "position 9: a value in quotes is expected"},
		{"app in {'x' 'y'}", "position 13: , or } is expected"},
		{"app in {'x'", "position 12: the selector ends where , or } is expected"},
		{"app in {'x',", "position 13: the selector ends where a value in quotes is expected"},
		{"app not 'x'", "position 5: ==, !=, in, not in, contains, starts with or ends with is expected"},
		{"app starts 'x'", "position 5: ==, !=, in, not in, contains, starts with or ends with is expected"},
		{"!= 'x'", "position 2: a label, has(), all(), global() or ( is expected"},
		{"app ! = 'x'", "position 5: ==, !=, in, not in, contains, starts with or ends with is expected"},
		{"é == 'x'", "position 1: a label, has(), all(), global() or ( is expected"},
		{long + "a == 'x'", "position 513: ==, !=, in, not in, contains, starts with or ends with is expected"},
		{"has(" + long + "a)", "position 517: ) is expected"},
		{strings.Repeat("(", MaxSelectorDepth+1) + "all()" + strings.Repeat(")", MaxSelectorDepth+1),
			"position 101: parentheses are nested deeper than 100"},
		{strings.Repeat(" ", MaxSelector+1), "position 65537: a selector has at most 65536 bytes"},
	} {
		if _, err := ParseSelector(c.text, Scope{}); err == nil || err.Error() != c.want {
			t.Errorf("%.80q: %v, want %s", c.text, err, c.want)
		}
	}
}

// TestCost: the longest selectors of each kind take less than a second of a processor together. They took 60 ms; what
// is read twice at each level, or compared with all before it, takes minutes.
func TestCost(t *testing.T) {
	fill := func(text string) string { return strings.Repeat(text, MaxSelector/len(text)) }
	var set strings.Builder
	for i := 0; set.Len() < MaxSelector-100; i++ {
		fmt.Fprintf(&set, "'%d',", i)
	}
	start := testkit.ProcessorTime()
	for _, text := range []string{
		fill("("), fill("!"), fill("!("), fill("a"), fill(" "), fill("'"), fill("has("), fill("a == 'b' && ") + "all()",
		fill("has(a)||")[8:] + "all()", fill("((((has(a)))))&&")[16:] + "all()", "a in {" + set.String() + "}",
		"a not" + fill("\n")[20:] + "in {'b'}", "a starts" + fill(" ")[20:],
		strings.Repeat(strings.Repeat("(", MaxSelectorDepth)+"has(a)"+strings.Repeat(")", MaxSelectorDepth)+"&&", 300) +
			"all()",
	} {
		if s, err := ParseSelector(text, Scope{}); err == nil {
			s(map[string]string{"a": "b"})
		}
	}
	if took := testkit.ProcessorTime() - start; took > time.Second {
		t.Errorf("took %v", took)
	}
}

// FuzzParse: what is a selector is one in parentheses, and the opposite behind "!"; a prefix changes names alone; an
// error names a position in the text.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "all()", "!global()", "has( a )", "a == 'b'", `a != "b"`, "a in {'b', 'c',}",
		"a not in {}", "a contains 'b'", "a starts with 'b' || a ends with 'c' && !has(d)", "((a == 'b') && !!(c == 'd'))",
		"a in", "x\x00", "(", "é"} {
		f.Add(text, "b")
	}
	position := regexp.MustCompile(`^position (\d+): .`)
	f.Fuzz(func(t *testing.T, text, value string) {
		s, err := ParseSelector(text, Scope{})
		if err != nil {
			m := position.FindStringSubmatch(err.Error())
			if m == nil {
				t.Fatalf("%q: %v", text, err)
			}
			if at, _ := strconv.Atoi(m[1]); at < 1 || at > len(text)+1 {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if len(text) > MaxSelector-len("!()") || strings.Count(text, "(") >= MaxSelectorDepth ||
			strings.Trim(text, " \t") == "" {
			return
		}
		negated, err := ParseSelector("!("+text+")", Scope{})
		if err != nil {
			t.Fatalf("%q in parentheses: %v", text, err)
		}
		prefixed, err := ParseSelector(text, Scope{Prefix: "p."})
		if err != nil {
			t.Fatalf("%q with a prefix: %v", text, err)
		}
		for _, labels := range []map[string]string{nil, {"a": value}, {"a": value, "b": "", "c": "d"}} {
			with := map[string]string{}
			for k, v := range labels {
				with["p."+k] = v
			}
			if want := s(labels); negated(labels) == want || prefixed(with) != want {
				t.Errorf("%q of %q is %v; negated %v, with a prefix %v", text, labels, want, negated(labels), prefixed(with))
			}
		}
	})
}

package selector

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"

	calico "github.com/projectcalico/calico/libcalico-go/lib/selector/parser"
	"github.com/sirupsen/logrus"

	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
)

func init() { logrus.SetOutput(io.Discard) }

const (
	prefix  = "pcns."
	present = "projectcalico.org/namespace"
)

// namespaces is what explain has a selector of namespaces mean; ofNamespaces is how Calico gets there: it parses, adds
// the prefix, prints, replaces all() and global() in that text, and parses it again.
var namespaces = policy.Scope{Prefix: prefix, All: policy.Has(present), Global: policy.Not(policy.Has(present))}

func ofNamespaces(text string) (calico.Selector, error) {
	s, err := calico.Parse(text)
	if err != nil {
		return nil, err
	}
	s.AcceptVisitor(calico.PrefixVisitor{Prefix: prefix})
	text = strings.ReplaceAll(s.String(), "all()", "has("+present+")")
	return calico.Parse(strings.ReplaceAll(text, "global()", "!has("+present+")"))
}

// agree compares both on a text, and returns whether it is a selector and on how many of the label sets it matches.
func agree(t *testing.T, text string, sets []map[string]string) (ok bool, matched int) {
	t.Helper()
	theirs, theirErr := calico.Parse(text)
	ours, ourErr := policy.ParseSelector(text, policy.Scope{})
	if (theirErr == nil) != (ourErr == nil) {
		t.Errorf("%.200q: Calico says %v, this %v", text, theirErr, ourErr)
		return false, 0
	}
	if theirErr != nil {
		return false, 0
	}
	theirsOfNamespaces, theirErr := ofNamespaces(text)
	oursOfNamespaces, ourErr := policy.ParseSelector(text, namespaces)
	if theirErr != nil || ourErr != nil {
		t.Errorf("%.200q of namespaces: Calico says %v, this %v", text, theirErr, ourErr)
		return false, 0
	}
	for _, labels := range sets {
		want := theirs.Evaluate(labels)
		if got := ours(labels); got != want {
			t.Errorf("%.200q of %q: Calico says %v, this %v", text, labels, want, got)
		}
		if want {
			matched++
		}
		if want, got := theirsOfNamespaces.Evaluate(labels), oursOfNamespaces(labels); got != want {
			t.Errorf("%.200q of the namespace of %q: Calico says %v, this %v", text, labels, want, got)
		}
	}
	return true, matched
}

// TestVersion: the parser is that of the Calico on the testbed's nodes.
func TestVersion(t *testing.T) {
	pinned := func(file string) string {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(`github\.com/projectcalico/calico v\S+`).FindString(string(data))
	}
	if own, nodes := pinned("go.mod"), pinned("../components/go.mod"); own == "" || own != nodes {
		t.Errorf("this has %q, tools/components %q", own, nodes)
	}
}

// TestTable has the edges of Calico's tokenizer.
func TestTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var sets []map[string]string
	for range 50 {
		sets = append(sets, labels(r))
	}
	const most = 512 // bytes that Calico reads of a label
	long := strings.Repeat("a", most)
	for _, text := range []string{
		"", " ", "\t", "\n", "\x00", "\v", "all()", "all( )", "all(\n)", "all(\v)", "all ()", "all(a)", "all", "all() all()",
		"allall()",
		"all()()", "!all()", "! all()", "!!all()", "!(all())", "global()", "global(\r\f)", "!global()", "global",
		"has(a)", "has(a )", "has(\na\t)", "has (a)", "has()", "has('a')", "has(a b)", "has(a", "has", "hashas(a)",
		"has(has)",
		"has == 'a'", "all == 'a'", "global != 'a'", "in == 'a'", "not in {'a'}", "in in {'a'}", "contains contains 'a'",
		"a", "a =", "a = 'b'", "a ==", "a == b", "a == 'b", "a == \"b'", "a == 'b\"'", `a == "b'"`, "a=='b'", "a  ==\t'b'",
		"a\n== 'b'", "a == 'b'\n", "a == 'b'b == 'c'", "a == 'b' b == 'c'", "'a' == 'b'", "a == ''", "a != ''", "a ! = 'b'",
		"a !='b'", "!a == 'b'", "!= 'b'", "!!= 'b'", "a === 'b'", "a == == 'b'", "é == 'b'", "a == 'é'", "a == '\xff\n\x00'",
		"a in {}", "a in {'b'}", "a in{'b','c'}", "a in {'b',}", "a in {,}", "a in {'b',,'c'}", "a in {'b' 'c'}", "a in {b}",
		"a in 'b'", "a in {'b'", "a in {", "a in", "a inx {'b'}", "a in_ {'b'}", "a in. {'b'}", "a\tin\t{\t'b'\t}",
		"a not in {'b'}", "a notin{'b'}", "a not\n\rin {'b'}", "a not\vin {'b'}", "a not", "a not 'b'", "a notinx {'b'}",
		"a contains 'b'", "a contains'b'", "a contains ''", "a contains b", "a contain 'b'", "a containsb 'c'",
		"a contains {'b'}",
		"a starts with 'b'", "a startswith'b'", "a starts\n\nwith 'b'", "a starts 'b'", "a ends with 'b'", "a endswith ''",
		"a ends\twith\t\"b\"", "a ends", "a end with 'b'", "A/b.c-d_e/9 == 'b'", "-- == 'b'", "/ == 'b'", ". in {'b'}",
		"(a == 'b')", "((a == 'b'))", "(a == 'b'", "a == 'b')", "()", "(", ")", "!()", "!(a == 'b')", "(!a == 'b')",
		"(a) == 'b'",
		"a == 'b' && b == 'c'", "a == 'b'&&b == 'c'", "a == 'b' & & b == 'c'", "a == 'b' && ", "&& a == 'b'", "a == 'b' &&",
		"a == 'b' || b == 'c'", "a == 'b'||b == 'c'", "a == 'b' | b == 'c'", "|| a == 'b'", "a == 'b' || || b == 'c'",
		"a == 'b' && b == 'c' || c == 'a'", "a == 'b' || b == 'c' && c == 'a'", "!a == 'b' && b == 'c'",
		"!(a == 'b' && b == 'c') || !(c == 'a' || a == 'c')", "a == 'all()'", "a != 'global()'", "a contains 'has(b)'",
		"a == '&&' || a == '||'", "{'b'}", ",", "=", "&", "|", "\"", "'", "a == 'b' # c", "a == 'b';",
		long + " == 'b'", long + "a == 'b'", long + "contains 'b'", long + "in {'b'}", long + "(", "has(" + long + ")",
		"has(" + long + "a)", long[4:] + "all()", long + "all()", "has(" + long[3:] + "all)",
	} {
		// A name with the prefix is too long for Calico's second reading. No label that exists is half as long.
		if strings.Contains(text, long[len(prefix):]) {
			_, theirs := calico.Parse(text)
			_, ours := policy.ParseSelector(text, policy.Scope{})
			if (theirs == nil) != (ours == nil) {
				t.Errorf("%q: Calico says %v, this %v", text, theirs, ours)
			}
			continue
		}
		agree(t, text, sets)
	}
}

// TestRandom: ten thousand selectors made by the grammar, and as many with an error put in, on twenty label sets each.
func TestRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	const selectors, each = 10_000, 20
	valid, invalid, matched := 0, 0, 0
	for range selectors {
		var sets []map[string]string
		for range each {
			sets = append(sets, labels(r))
		}
		text := selectorOf(r, 4)
		ok, n := agree(t, text, sets)
		if !ok {
			t.Fatalf("%q is no selector", text)
		}
		valid, matched = valid+1, matched+n
		if ok, n := agree(t, damaged(r, text), sets); ok {
			valid, matched = valid+1, matched+n
		} else {
			invalid++
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d selectors, of which %d %% of the label sets have what they want; %d texts are none", valid,
		100*matched/(valid*each), invalid)
	if invalid < selectors/3 || matched < valid*each/4 || matched > valid*each*3/4 {
		t.Error("these texts compare too little")
	}
}

var (
	names  = []string{"a", "b", "c", "a.b/c-d_e", "in", "not", "has", "all", "contains", "starts", present}
	values = []string{"", "a", "b", "ab", "abc", "ba", "x'y", "é"}
	// Calico replaces these within quotes too. That changes no result: no label may have such a value.
	calls = []string{"all()", "global()"}
)

func one(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

// labels has half of the names, also as those of a namespace.
func labels(r *rand.Rand) map[string]string {
	out := map[string]string{}
	for _, name := range names {
		for _, in := range []string{"", prefix} {
			if r.IntN(2) == 0 {
				out[in+name] = one(r, values...)
			}
		}
	}
	return out
}

func selectorOf(r *rand.Rand, depth int) string {
	s := func() string { return one(r, "", "", " ", "\t ") } // between any two words
	w := func() string { return one(r, "", " ", "\n", " \t\r\f") }
	quoted := func() string {
		value := one(r, append(calls, values...)...)
		if strings.Contains(value, "'") || r.IntN(2) == 0 {
			return `"` + value + `"`
		}
		return "'" + value + "'"
	}
	if depth > 0 && r.IntN(3) > 0 {
		switch r.IntN(4) {
		case 0:
			return s() + "(" + selectorOf(r, depth-1) + ")" + s()
		case 1:
			return s() + "!" + s() + "(" + selectorOf(r, depth-1) + ")"
		}
		operator := one(r, "&&", "||")
		out := selectorOf(r, depth-1)
		for range 1 + r.IntN(2) {
			out += operator + selectorOf(r, depth-1)
		}
		return out
	}
	name := one(r, names...)
	out := s() + strings.Repeat("!"+s(), r.IntN(5)/2)
	switch r.IntN(6) {
	case 0:
		return out + one(r, "all(", "global(") + w() + ")" + s()
	case 1:
		return out + "has(" + w() + name + w() + ")" + s()
	case 2:
		set := ""
		for i, n := 0, r.IntN(4); i < n; i++ {
			set += s() + quoted() + s() + one(r, ",")
		}
		if r.IntN(2) == 0 {
			set = strings.TrimSuffix(set, ",")
		}
		return out + name + " " + s() + one(r, "in", "not"+w()+"in") + s() + "{" + set + s() + "}" + s()
	case 3:
		return out + name + " " + one(r, "contains", "starts"+w()+"with", "ends"+w()+"with") + s() + quoted() + s()
	}
	return out + name + s() + one(r, "==", "!=") + s() + quoted() + s()
}

// damaged replaces, removes, doubles or inserts something at one place or two.
func damaged(r *rand.Rand, text string) string {
	for range 1 + r.IntN(2) {
		at := r.IntN(len(text))
		end := min(len(text), at+1+r.IntN(3))
		switch r.IntN(4) {
		case 0:
			text = text[:at] + text[end:]
		case 1:
			text = text[:end] + text[at:]
		default:
			more := one(r, "(", ")", "{", "}", ",", "'", `"`, "!", "=", "==", "!=", "&", "&&", "|", "||", " ", "\n", "\v",
				"\x00",
				"é", "a", "in", "not", "not in", "has(", "has(a)", "all()", "global()", "contains", "starts with", "ends",
				"'a'")
			text = text[:at] + more + text[at+r.IntN(end-at+1):]
		}
		if text == "" {
			return fmt.Sprint(at)
		}
	}
	return text
}

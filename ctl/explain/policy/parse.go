package policy

// A Selector evaluates one of Calico's selectors
// (https://docs.tigera.io/calico/latest/reference/resources/networkpolicy#selectors). It accepts the same selectors as
// Calico's own parser, with the same result, which tools/selector tests: Calico is one Go module with requirements that
// no other module can meet without exclude directives, and go install refuses a module with those.

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// Every user of a cluster may write a policy. These bound the cost of a selector; Calico itself has no bound.
const (
	MaxSelector      = 64 << 10 // bytes
	MaxSelectorDepth = 100      // of parentheses

	// maxLabel is where Calico ends a label's name. Only text that is no valid name is so long.
	maxLabel = 512
)

type Selector func(labels map[string]string) bool

// Scope is whose labels a selector means. The zero value is the object's own.
type Scope struct {
	// Prefix begins the names of these labels.
	Prefix string
	// All and Global are the matches of all() and global(): every object, if nil.
	All, Global Selector
}

func Has(name string) Selector {
	return func(labels map[string]string) bool {
		_, ok := labels[name]
		return ok
	}
}

// In selects objects whose label has one of these values.
func In(name string, values sets.Set[string]) Selector {
	return func(labels map[string]string) bool {
		value, ok := labels[name]
		return ok && values.Has(value)
	}
}

// Not selects objects that s does not.
func Not(s Selector) Selector {
	return func(labels map[string]string) bool { return !s(labels) }
}

// ParseSelector returns the selector that a text is in a scope. It fails if Calico would not parse it or it is too
// large, with the position, counted in bytes from 1.
func ParseSelector(text string, in Scope) (Selector, error) {
	if len(text) > MaxSelector {
		return nil, fmt.Errorf("position %d: a selector has at most %d bytes", MaxSelector+1, MaxSelector)
	}
	p := parser{text: text, scope: in}
	if p.peek(); p.at == len(text) {
		return every(in.All), nil
	}
	s, err := p.or()
	if err == nil && p.at < len(text) {
		err = p.expected("&&, || or the end")
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// parser reads each byte once, but for the names of operators.
type parser struct {
	text      string
	at, depth int
	scope     Scope
}

func (p *parser) or() (Selector, error) {
	return p.chain("||", true, func() (Selector, error) { return p.chain("&&", false, p.operand) })
}

// chain reads operands with an operator between them. The first whose result is decisive decides.
func (p *parser) chain(operator string, decisive bool, operand func() (Selector, error)) (Selector, error) {
	var all []Selector
	for {
		s, err := operand()
		if err != nil {
			return nil, err
		}
		all = append(all, s)
		if p.peek(); !p.take(operator) {
			break
		}
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return func(labels map[string]string) bool {
		for _, s := range all {
			if s(labels) == decisive {
				return decisive
			}
		}
		return !decisive
	}, nil
}

func (p *parser) operand() (Selector, error) {
	negated := false
	for p.peek() == '!' {
		p.at++
		negated = !negated
	}
	s, err := p.primary()
	if err == nil && negated {
		s = Not(s)
	}
	return s, err
}

func (p *parser) primary() (Selector, error) {
	if p.peek() == '(' {
		if p.depth == MaxSelectorDepth {
			return nil, p.failure("parentheses are nested deeper than %d", MaxSelectorDepth)
		}
		p.at++
		p.depth++
		s, err := p.or()
		if err == nil && p.peek() != ')' {
			err = p.expected("&&, || or )")
		}
		p.at++
		p.depth--
		return s, err
	}
	name := p.label()
	if name == "" {
		return nil, p.expected("a label, has(), all(), global() or (")
	}
	if p.at < len(p.text) && p.text[p.at] == '(' {
		return p.call(name)
	}
	return p.comparison(p.scope.Prefix + name)
}

// call reads the rest after the name of a function. Calico takes any white space within, and none before the
// parenthesis.
func (p *parser) call(function string) (Selector, error) {
	p.at++
	p.space()
	var s Selector
	switch function {
	case "all":
		s = every(p.scope.All)
	case "global":
		s = every(p.scope.Global)
	case "has":
		name := p.label()
		if name == "" {
			return nil, p.expected("a label")
		}
		p.space()
		s = Has(p.scope.Prefix + name)
	default:
		p.at -= len("(")
		return nil, p.failure("there is no function %.80q", function)
	}
	if !p.take(")") {
		return nil, p.expected(")")
	}
	return s, nil
}

func every(s Selector) Selector {
	if s == nil {
		return func(map[string]string) bool { return true }
	}
	return s
}

// operators may follow a label, longer ones before those that they begin with. Calico takes any white space, or none,
// between their words.
var operators = []struct {
	words []string
	// is compares the label's value with that of the selector; for nil a set follows.
	is func(value, with string) bool
	// negated ones match objects that lack the label, too.
	negated bool
}{
	{words: []string{"=="}, is: func(value, with string) bool { return value == with }},
	{words: []string{"!="}, is: func(value, with string) bool { return value == with }, negated: true},
	{words: []string{"contains"}, is: strings.Contains},
	{words: []string{"starts", "with"}, is: strings.HasPrefix},
	{words: []string{"ends", "with"}, is: strings.HasSuffix},
	{words: []string{"not", "in"}, negated: true},
	{words: []string{"in"}},
}

func (p *parser) comparison(name string) (Selector, error) {
	p.peek()
	for _, o := range operators {
		if !p.words(o.words) {
			continue
		}
		var s Selector
		if o.is == nil {
			values, err := p.set()
			if err != nil {
				return nil, err
			}
			s = In(name, values)
		} else {
			with, err := p.value()
			if err != nil {
				return nil, err
			}
			s = func(labels map[string]string) bool {
				value, ok := labels[name]
				return ok && o.is(value, with)
			}
		}
		if o.negated {
			s = Not(s)
		}
		return s, nil
	}
	return nil, p.expected("==, !=, in, not in, contains, starts with or ends with")
}

func (p *parser) words(words []string) bool {
	start := p.at
	for i, word := range words {
		if i > 0 {
			p.space()
		}
		if !p.take(word) {
			p.at = start
			return false
		}
	}
	return true
}

// set reads values in braces. The last one may have a comma behind it.
func (p *parser) set() (sets.Set[string], error) {
	if p.peek() != '{' {
		return nil, p.expected("{")
	}
	p.at++
	values := sets.Set[string]{}
	for p.peek() != '}' {
		value, err := p.value()
		if err != nil {
			return nil, err
		}
		values.Insert(value)
		if p.peek() == ',' {
			p.at++
		} else if p.peek() != '}' {
			return nil, p.expected(", or }")
		}
	}
	p.at++
	return values, nil
}

// value reads a value in quotes of either kind. Nothing in it is escaped.
func (p *parser) value() (string, error) {
	quote := p.peek()
	if quote != '"' && quote != '\'' {
		return "", p.expected("a value in quotes")
	}
	value, _, closed := strings.Cut(p.text[p.at+1:], string(quote))
	if !closed {
		return "", p.failure("the quote that begins here does not end")
	}
	p.at += len(value) + len(`""`)
	return value, nil
}

// label reads the name of a label, which may be empty.
func (p *parser) label() string {
	start := p.at
	for p.at < len(p.text) && p.at-start < maxLabel && isLabel(p.text[p.at]) {
		p.at++
	}
	return p.text[start:p.at]
}

func isLabel(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("_./-", c) >= 0
}

func (p *parser) take(text string) bool {
	if !strings.HasPrefix(p.text[p.at:], text) {
		return false
	}
	p.at += len(text)
	return true
}

// peek skips the white space that may be between any two words, and returns the next byte, 0 at the end.
func (p *parser) peek() byte {
	for ; p.at < len(p.text); p.at++ {
		if c := p.text[p.at]; c != ' ' && c != '\t' {
			return c
		}
	}
	return 0
}

// space skips all white space, line breaks too.
func (p *parser) space() {
	for p.at < len(p.text) && strings.IndexByte(" \t\n\f\r", p.text[p.at]) >= 0 {
		p.at++
	}
}

func (p *parser) expected(what string) error {
	if p.at >= len(p.text) {
		return p.failure("the selector ends where %s is expected", what)
	}
	return p.failure("%s is expected", what)
}

func (p *parser) failure(format string, args ...any) error {
	return fmt.Errorf("position %d: "+format, append([]any{p.at + 1}, args...)...)
}

package program

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Clean is a writer to a terminal, a file or a pipe through which no text can control a terminal. Much of what a
// program prints came from an apiserver or another cluster, in errors too. It replaces control characters, and those
// that change the direction of text, by spaces; it keeps line ends, tabs, and the sequences of Colours.
type Clean struct {
	raw *os.File
	mu  sync.Mutex
	// rest is the beginning of a character, or of a sequence, whose end the next call writes.
	rest []byte
	// failed is the first failure, which ends in the exit code of the program: no caller has to look at each write.
	failed error
}

func NewClean(f *os.File) *Clean { return &Clean{raw: f} }

// Raw is the file itself, for binary data.
func (c *Clean) Raw() *os.File { return c.raw }

// Fd makes it known whether it is a terminal.
func (c *Clean) Fd() uintptr { return c.raw.Fd() }

// Colours are the sequences by which a program colours words (ECMA-48, SGR), and the one that ends a colour. They hide
// nothing, also in a foreign text.
var Colours = []string{"\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"}

// Write implements io.Writer. It fails if the file does.
func (c *Clean) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text, rest := cleaned(append(c.rest, p...))
	c.rest = bytes.Clone(rest)
	if _, err := c.raw.Write(text); err != nil {
		c.failed = cmp.Or(c.failed, err)
		return 0, err
	}
	return len(p), nil
}

// Close writes a space for an incomplete character. It fails if any write did, with the first failure. It does not
// close the file.
func (c *Clean) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.rest) > 0 {
		c.rest = nil
		_, err := io.WriteString(c.raw, " ")
		c.failed = cmp.Or(c.failed, err)
	}
	return c.failed
}

// cleaned returns text without control characters, and the bytes at its end that more bytes may complete.
func cleaned(text []byte) (out, rest []byte) {
	for i := 0; i < len(text); {
		if text[i] == '\x1b' {
			n, whole := colour(text[i:])
			switch {
			case n > 0 && whole:
				out = append(out, text[i:i+n]...)
				i += n
				continue
			case n > 0:
				return out, text[i:]
			}
		}
		if !utf8.FullRune(text[i:]) {
			return out, text[i:]
		}
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 || !unicode.IsPrint(r) && r != '\n' && r != '\t' {
			out = append(out, ' ')
		} else {
			out = append(out, text[i:i+n]...)
		}
		i += n
	}
	return out, nil
}

// colour returns the length of the sequence of Colours with which a text begins; whole is false if the text has only
// the beginning of one.
func colour(text []byte) (n int, whole bool) {
	for _, sequence := range Colours {
		if bytes.HasPrefix(text, []byte(sequence)) {
			return len(sequence), true
		}
		if len(text) < len(sequence) && bytes.HasPrefix([]byte(sequence), text) {
			n = len(text)
		}
	}
	return n, false
}

package program

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestClean: no text controls a terminal, however it is divided between writes; lines, tabs and the colours of the
// program pass.
func TestClean(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"text":               {"c1: müde\tpods 10.2.0.0/16\n", "c1: müde\tpods 10.2.0.0/16\n"},
		"a colour":           {"\x1b[31mERROR\x1b[0m", "\x1b[31mERROR\x1b[0m"},
		"clears the screen":  {"\x1b[2Jx", " [2Jx"},
		"a window title":     {"\x1b]0;evil\x07x", " ]0;evil x"},
		"the clipboard":      {"\x1b]52;c;cm0gLXJm\x07", " ]52;c;cm0gLXJm "},
		"hidden text":        {"\x1b[8mx", " [8mx"},
		"a line overwritten": {"no\rOK\b\b", "no OK  "},
		"C1":                 {"\u009b2J\u009d0;x\u009c", " 2J 0;x "},
		"C1 as a byte":       {"\x9b2J", " 2J"},
		"direction":          {"a\u202eb\u2066c\u200f", "a b c "},
		"NUL and DEL":        {"a\x00b\x7f", "a b "},
		"the last byte":      {"\xe2\x82", " "},
		"the last escape":    {"\x1b[3", " "},
	} {
		for _, size := range []int{1, 2, 3, 1 << 10} {
			file := filepath.Join(t.TempDir(), "out")
			f := testkit.Value(os.Create(file))(t)
			c := NewClean(f)
			for text := test.text; text != ""; {
				n := min(size, len(text))
				if got, err := c.Write([]byte(text[:n])); err != nil || got != n {
					t.Fatalf("%d, %v", got, err)
				}
				text = text[n:]
			}
			testkit.Must(t, c.Close())
			got := testkit.Value(os.ReadFile(file))(t)
			if string(got) != test.want {
				t.Errorf("%s, in writes of %d bytes: %q, want %q", name, size, got, test.want)
			}
			f.Close()
		}
	}
}

// TestCleanFails: the first failure to write is the error of the program, although nobody looks at that of the write.
func TestCleanFails(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	testkit.Must(t, err)
	defer full.Close()
	c := NewClean(full)
	_, _ = c.Write([]byte("all is well"))
	if err := c.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want that of the write", err)
	}
}

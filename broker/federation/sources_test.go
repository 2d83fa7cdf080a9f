package federation

import "testing"

// TestAnotherSource: whether an exporter is refused, by what stands, what the connected one reads and what it reads.
func TestAnotherSource(t *testing.T) {
	for _, c := range []struct {
		name                       string
		stands, connected, offered string
		refused                    bool
	}{
		{"the first one", "", "", "a", false},
		{"the first one does not know what it reads", "", "", "", false},
		{"it comes back", "a", "", "a", false},
		{"a newer one of the same cluster", "a", "a", "a", false},
		{"another cluster beside it", "a", "a", "b", true},
		{"another cluster while it is away", "a", "", "b", true},
		{"another cluster beside one that does not know", "a", "", "b", true},
		{"one that does not know, beside one that does", "a", "a", "", true},
		{"one that does not know, while it is away", "a", "", "", false},
		{"one that does not know, beside another such", "", "", "", false},
		{"etcd was restored in place", uidOf("a"), uidOf("a"), uidOf("a/1"), false},
		{"another cluster, whose etcd was restored", uidOf("a/1"), "", uidOf("b/1"), true},
	} {
		if got := anotherSource(c.stands, c.connected, c.offered); got != c.refused {
			t.Errorf("%s: refused %v; want %v", c.name, got, c.refused)
		}
	}
	for text, plain := range map[string]bool{
		"0c5f0000-0000-4000-8000-000000000001": true, "uid": true, "": false, "a b": false, "a'; reboot; '": false,
		"-a": false, "\x1b[31m": false, "a\nb": false,
	} {
		if got := plainUID.MatchString(text); got != plain {
			t.Errorf("%q can be shown in a command: %v", text, got)
		}
	}
}

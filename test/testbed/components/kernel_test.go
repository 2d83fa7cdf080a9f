package components

import "testing"

func TestParseKernelPackage(t *testing.T) {
	for _, c := range []struct{ what, record, name, version string }{
		{"Debian's", "Package: linux-image-amd64\nVersion: 6.1.192-2\nDepends: linux-image-6.1.0-56-amd64 (= " +
			"6.1.192-2)\nSize: 1\n", "linux-image-6.1.0-56-amd64", "6.1.192-2"},
		{"among others", "Depends: kmod, linux-image-6.12.9-amd64 (= 6.12.9-1), other (= 1)\n", "linux-image-6.12.9-amd64",
			"6.12.9-1"},
		{"of no version", "Depends: linux-image-6.12.9-amd64\n", "", ""},
		{"with none", "Package: linux-image-amd64\nDepends: kmod (= 30)\n", "", ""},
		{"nothing", "", "", ""},
	} {
		name, version, err := parseKernelPackage(c.record)
		if name != c.name || version != c.version || (err == nil) != (c.name != "") {
			t.Errorf("%s: %q %q, %v", c.what, name, version, err)
		}
	}
}

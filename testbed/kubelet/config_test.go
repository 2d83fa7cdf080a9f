//go:build linux

package kubelet

import (
	"strings"
	"testing"
)

func TestImageName(t *testing.T) {
	for in, want := range map[string]string{
		"semaphore":                                        "semaphore",
		"semaphore:v1":                                     "semaphore",
		"ghcr.io/kube-semaphore/semaphore:v1":              "semaphore",
		"localhost:5000/coredns":                           "coredns",
		"registry.example/x/testbed@sha256:abcdef":         "testbed",
		"registry.example:5000/x/testbed:v1@sha256:abcdef": "testbed",
	} {
		if got := imageName(in); got != want {
			t.Errorf("imageName(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestConfigValidation(t *testing.T) {
	_, err := New(Config{Nodes: []Node{{}, {Name: "n1"}, {Name: "n1"}}})
	for _, want := range []string{"REST", "Dir", "ClusterDNS", "ClusterDomain", "NetnsPrefix", "Nodes[0].Name", "Nodes[1].Netns", "Nodes[2].Name", "Nodes[1].Root"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %s: %v", want, err)
		}
	}
}

package choice

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// text is a drain as it is stored and edited: a few lines of YAML.
type text struct {
	Cluster   string   `json:"cluster,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Service   string   `json:"service,omitempty"`
	Node      string   `json:"node,omitempty"`
	Prefixes  []string `json:"prefixes,omitempty"`
	Since     string   `json:"since,omitempty"`
	Until     string   `json:"until,omitempty"`
	By        string   `json:"by,omitempty"`
}

// Parse parses a drain. It fails if it is no YAML, has an unknown field or an invalid one; the error names each of
// these.
func Parse(value string) (Drain, error) {
	var t text
	if err := yaml.UnmarshalStrict([]byte(value), &t); err != nil {
		return Drain{}, err
	}
	d := Drain{Target: Target{Cluster: t.Cluster, Namespace: t.Namespace, Service: t.Service, Node: t.Node}, By: t.By}
	var errs []error
	for i, p := range t.Prefixes {
		prefix, err := ParsePrefix(p)
		if err != nil {
			errs = append(errs, fmt.Errorf("prefixes[%d]: %w", i, err))
			continue
		}
		d.Prefixes = append(d.Prefixes, prefix)
	}
	at := func(field, value string, into *time.Time) {
		if value == "" {
			return
		}
		var err error
		if *into, err = time.Parse(time.RFC3339, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %q is not a time, such as \"2026-01-02T15:04:05Z\"", field, value))
		}
	}
	at("since", t.Since, &d.Since)
	at("until", t.Until, &d.Until)
	if len(errs) > 0 {
		return Drain{}, errors.Join(errs...)
	}
	return d, d.Validate()
}

// ParsePrefix parses a subnet of a node's pods. It refuses a prefix of all addresses, which would be a drain of the
// cluster.
func ParsePrefix(s string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(s)
	switch {
	case err != nil || prefix.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q is not a subnet, such as \"10.2.1.0/24\"", s)
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Errorf("%s has bits set outside its mask: write %s", s, prefix.Masked())
	case prefix.Bits() == 0:
		return netip.Prefix{}, fmt.Errorf("%s contains every address: drain the cluster", s)
	}
	return prefix, nil
}

// Text returns the drain in the form that Parse accepts. Times are truncated to seconds.
func (d Drain) Text() string {
	t := text{Cluster: d.Cluster, Namespace: d.Namespace, Service: d.Service, Node: d.Node, By: d.By}
	for _, p := range d.Prefixes {
		t.Prefixes = append(t.Prefixes, p.String())
	}
	if !d.Since.IsZero() {
		t.Since = d.Since.UTC().Format(time.RFC3339)
	}
	if !d.Until.IsZero() {
		t.Until = d.Until.UTC().Format(time.RFC3339)
	}
	data, err := yaml.Marshal(t)
	if err != nil { // cannot happen for strings
		return ""
	}
	return string(data)
}

// Key returns the key of a drain of the target in a ConfigMap's data, which may contain letters, digits, '-', '_' and
// '.'. Different targets have different keys. A key has no meaning: drains under any other are read, too.
func (t Target) Key() string {
	// Names of nodes have dots. Where that of the cluster has some, too, a dot would not say where it ends.
	node := "node." + t.Cluster + "."
	if strings.Contains(t.Cluster, ".") {
		node = "node." + t.Cluster + "_"
	}
	var key string
	switch {
	case t.Node != "":
		key = node + t.Node
	case t.Service == "":
		key = "cluster." + t.Cluster
	case t.Cluster == "":
		key = "service." + t.Namespace + "." + t.Service
	default:
		key = "service." + t.Cluster + "." + t.Namespace + "." + t.Service // of the three only the first may contain a dot
	}
	if len(validation.IsConfigMapKey(key)) > 0 { // the name of a node can be as long as a key
		sum := sha256.Sum256([]byte(key))
		key = node + hex.EncodeToString(sum[:16])
	}
	return key
}

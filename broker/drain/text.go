package drain

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// text is a drain as it is kept and as people edit it: a few lines of YAML.
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

// Parse reads a drain from its text. The error names each field that makes no sense.
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
			errs = append(errs, fmt.Errorf("%s: %q is no time, such as \"2026-01-02T15:04:05Z\"", field, value))
		}
	}
	at("since", t.Since, &d.Since)
	at("until", t.Until, &d.Until)
	if len(errs) > 0 {
		return Drain{}, errors.Join(errs...)
	}
	return d, d.Validate()
}

// ParsePrefix reads a subnet of a node's pods. One that is everything is refused: that is a drain of the cluster.
func ParsePrefix(s string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(s)
	switch {
	case err != nil || prefix.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q is no subnet, such as \"10.2.1.0/24\"", s)
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Errorf("%s has bits set outside its mask: write %s", s, prefix.Masked())
	case prefix.Bits() == 0:
		return netip.Prefix{}, fmt.Errorf("%s is everything: drain the cluster", s)
	}
	return prefix, nil
}

// Text is the drain as Parse reads it. Times are cut to seconds.
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
	if err != nil { // of strings there is none
		return ""
	}
	return string(data)
}

// Key is the name that a drain of the target is kept under: a key of a ConfigMap's data, which may have letters, digits, '-',
// '_' and '.'. Two targets have two keys. Drains are read under any other key too.
func (t Target) Key() string {
	var key string
	switch {
	case t.Node != "":
		key = "node." + t.Cluster + "." + t.Node
	case t.Service == "":
		key = "cluster." + t.Cluster
	case t.Cluster == "":
		key = "service." + t.Namespace + "." + t.Service
	default:
		key = "service." + t.Cluster + "." + t.Namespace + "." + t.Service // none of the three has a dot
	}
	if len(validation.IsConfigMapKey(key)) > 0 { // a node's name is as long as a key
		sum := sha256.Sum256([]byte(key))
		key = "node." + t.Cluster + "." + hex.EncodeToString(sum[:16])
	}
	return key
}

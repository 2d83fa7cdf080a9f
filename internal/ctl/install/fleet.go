package install

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/diagnose/check"
	"github.com/kube-semaphore/semaphore/internal/diagnose/preflight"
)

// Fleet describes several clusters and their links, in one file.
type Fleet struct {
	// Image is the image of all clusters that have none of their own.
	Image    string    `json:"image,omitempty"`
	Clusters []Cluster `json:"clusters"`
	// Links are pairs of cluster names. If absent, all clusters are linked with each other.
	Links [][]string `json:"links,omitempty"`
}

// Cluster is a cluster of a fleet. The file must name its subnets, because no survey reads the cluster.
type Cluster struct {
	Wishes
	// Namespace is the namespace of the parts.
	Namespace string `json:"namespace,omitempty"`
	// CNI is calico, the default, or other.
	CNI string `json:"cni,omitempty"`
	// Broker is the HOST:PORT at which other clusters reach the cluster's broker.
	Broker string `json:"broker,omitempty"`
	// TrustBundle has the cluster's root certificates, PEM. If it is empty, a file of the parts must have them.
	TrustBundle string `json:"trustBundle,omitempty"`
	// ClusterDomain is the DNS domain of the cluster's own Services.
	ClusterDomain string `json:"clusterDomain,omitempty"`
}

// Facts returns the cluster's properties, from the file, in the form in which a survey returns them.
func (c *Cluster) Facts() *preflight.Cluster {
	facts := &preflight.Cluster{Context: c.Name, Names: []string{c.Name}, CNI: "other",
		DNS:  preflight.DNS{ConfigMap: "kube-system/coredns"},
		Pods: preflight.Subnets{Prefixes: c.PodSubnets}, Services: preflight.Subnets{Prefixes: c.ServiceSubnets},
		IPs: preflight.Subnets{Prefixes: c.NodeSubnets}}
	if c.CNI == "calico" {
		facts.CNI, facts.Calico = "Calico", &preflight.Calico{Strict: true}
	}
	return facts
}

// ParseFleet parses the file of a fleet. An error names each invalid field.
func ParseFleet(text []byte) (*Fleet, error) {
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	if err := checkSubnets(data); err != nil {
		return nil, err
	}
	var f Fleet
	unknown, err := kjson.UnmarshalStrict(data, &f)
	if err != nil {
		return nil, err
	}
	if len(unknown) > 0 {
		return nil, errors.Join(unknown...)
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	if err := f.checkPairs(); err != nil {
		return nil, err
	}
	return &f, nil
}

// complete fills in absent fields.
func (c *Cluster) complete(image string) {
	c.Namespace = cmp.Or(c.Namespace, DefaultNamespace)
	c.CNI = cmp.Or(c.CNI, "calico")
	c.ClusterDomain = cmp.Or(c.ClusterDomain, "cluster.local")
	c.Image = cmp.Or(c.Image, image)
}

// names returns the index of each cluster by its name.
func (f *Fleet) names() map[string]int {
	names := map[string]int{}
	for i := range f.Clusters {
		names[f.Clusters[i].Name] = i
	}
	return names
}

// check completes the fleet, and checks each cluster and each link on its own.
func (f *Fleet) check() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(f.Clusters) == 0 {
		add("clusters: none: name at least one")
	}
	names := map[string]int{}
	for i := range f.Clusters {
		c := &f.Clusters[i]
		at := fmt.Sprintf("clusters[%d]", i)
		c.complete(f.Image)
		if err := c.Wishes.Check(); err != nil {
			add("%s.%w", at, err)
		}
		if c.Name == "" {
			add("%s.name: missing", at)
		} else if other, twice := names[c.Name]; twice {
			add("%s.name: %q is also that of clusters[%d]", at, c.Name, other)
		}
		names[c.Name] = i
		if c.CNI != "calico" && c.CNI != "other" {
			add("%s.cni: %q: use calico or other", at, c.CNI)
		}
		if len(c.PodSubnets) == 0 {
			add("%s.podSubnets: none: name the subnets of its pods", at)
		}
		if len(c.ServiceSubnets) == 0 {
			add("%s.serviceSubnets: none: name the subnets of its Services", at)
		}
		if len(c.NodeSubnets) == 0 {
			add("%s.nodeSubnets: none: name the subnets of its nodes", at)
		}
		if err := c.checkBroker(); err != nil {
			add("%s.broker: %w", at, err)
		}
	}
	errs = append(errs, f.checkLinks(names)...)
	return errors.Join(errs...)
}

// checkBroker checks the form of the broker's address, which is required only in a linked cluster.
func (c *Cluster) checkBroker() error {
	if c.Broker == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(c.Broker)
	if err != nil {
		return fmt.Errorf("%q: use HOST:PORT", c.Broker)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%q is no port", port)
	}
	return nil
}

// checkLinks checks that each link names two clusters. Without links, it links all clusters with each other.
func (f *Fleet) checkLinks(names map[string]int) (errs []error) {
	if f.Links == nil {
		for i := range f.Clusters {
			for j := range i {
				f.Links = append(f.Links, []string{f.Clusters[j].Name, f.Clusters[i].Name})
			}
		}
	}
	for i, link := range f.Links {
		if len(link) != 2 || link[0] == link[1] {
			errs = append(errs, fmt.Errorf("links[%d]: %q: name two clusters", i, link))
			continue
		}
		for j, name := range link {
			if _, known := names[name]; !known {
				errs = append(errs, fmt.Errorf("links[%d][%d]: %q is none of the clusters", i, j, name))
			}
		}
	}
	return errs
}

// checkPairs checks the two clusters of each link against each other.
func (f *Fleet) checkPairs() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	names := f.names()
	for i, link := range f.Links {
		a, b := &f.Clusters[names[link[0]]], &f.Clusters[names[link[1]]]
		for _, finding := range preflight.JudgePair(a.Facts(), b.Facts()) {
			if finding.Level == check.Error {
				add("links[%d]: %s: %s", i, finding.Subject, finding.Evidence)
			}
		}
		for _, c := range []*Cluster{a, b} {
			if c.Broker == "" {
				add("clusters[%d].broker: missing: %s and %s are linked", names[c.Name], a.Name, b.Name)
			}
		}
	}
	slices.SortFunc(errs, func(x, y error) int { return strings.Compare(x.Error(), y.Error()) })
	errs = slices.CompactFunc(errs, func(x, y error) bool { return x.Error() == y.Error() })
	return errors.Join(errs...)
}

// checkSubnets names the field of an invalid subnet, because the decoder's error does not.
func checkSubnets(data []byte) error {
	type subnets struct {
		PodSubnets, ServiceSubnets, NodeSubnets []any
	}
	var raw struct{ Clusters []subnets }
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	var errs []error
	for i, c := range raw.Clusters {
		for _, s := range []struct {
			key string
			all []any
		}{{"podSubnets", c.PodSubnets}, {"serviceSubnets", c.ServiceSubnets}, {"nodeSubnets", c.NodeSubnets}} {
			for j, one := range s.all {
				text, _ := one.(string)
				if _, err := netip.ParsePrefix(text); err != nil {
					errs = append(errs, fmt.Errorf("clusters[%d].%s[%d]: %v is no network, such as 10.1.0.0/16", i, s.key, j, one))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// Peers returns the clusters that a cluster is linked with, in the order of the file.
func (f *Fleet) Peers(name string) (out []*Cluster) {
	for i := range f.Clusters {
		other := f.Clusters[i].Name
		if slices.ContainsFunc(f.Links, func(link []string) bool {
			return link[0] == name && link[1] == other || link[1] == name && link[0] == other
		}) {
			out = append(out, &f.Clusters[i])
		}
	}
	return out
}

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/kube-semaphore/semaphore/test/testbed"
)

// fingerprint maps each thing that exists somewhere to what must not change about it.
type fingerprint map[string]string

// difference describes the changes, one line per thing. It is empty if nothing has changed.
func (f fingerprint) difference(now fingerprint) string {
	var lines []string
	for name, was := range f {
		is, ok := now[name]
		switch {
		case !ok:
			lines = append(lines, "gone: "+name)
		case is != was:
			lines = append(lines, fmt.Sprintf("changed: %s\n  was %s\n  is  %s", name, was, is))
		}
	}
	for name := range now {
		if _, ok := f[name]; !ok {
			lines = append(lines, "new: "+name+" "+now[name])
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// fingerprints returns the fingerprint of every cluster and of each of its nodes.
func (s *Scenario) fingerprints(ctx context.Context) (map[string]fingerprint, error) {
	out := map[string]fingerprint{}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	take := func(what string, f func() (fingerprint, error)) {
		g.Go(func() error {
			taken, err := f()
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			mu.Lock()
			defer mu.Unlock()
			out[what] = taken
			return nil
		})
	}
	for _, c := range s.tb.Clusters() {
		take("cluster "+c.Name, func() (fingerprint, error) { return clusterFingerprint(ctx, c) })
		for _, n := range c.Nodes {
			take("node "+c.Name+"/"+n.Name, func() (fingerprint, error) { return nodeFingerprint(ctx, c, n) })
		}
	}
	return out, g.Wait()
}

// passing are the kinds that are ignored: their objects change by themselves, repeat other objects (Endpoints and
// EndpointSlices), or are Calico's IPAM records, as a node keeps a block in which it once had a pod.
var passing = map[string]bool{
	"events": true, "leases": true, "replicasets": true, "controllerrevisions": true, "endpoints": true,
	"blockaffinities": true, "ipamblocks": true, "ipamhandles": true,
}

// clusterFingerprint returns every object that can be listed, by name, with the annotations and labels of those that
// outlive an installation.
func clusterFingerprint(ctx context.Context, c *testbed.Cluster) (fingerprint, error) {
	lists, err := c.Client.Discovery().ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("what the apiserver serves: %w", err)
	}
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists)
	out := fingerprint{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if passing[r.Name] {
				continue
			}
			items, err := c.Dynamic.Resource(gv.WithResource(r.Name)).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("listing %s: %w", r.Name, err)
			}
			for _, item := range items.Items {
				name := strings.Join([]string{r.Name, gv.Group, item.GetNamespace(), lasting(&item)}, " ")
				for _, taken := out[name]; taken; _, taken = out[name] {
					name += ", another"
				}
				out[name] = marks(&item)
			}
		}
	}
	return out, nil
}

// lasting returns an object's name without the parts that a rollout changes: CoreDNS restarts when its server blocks
// change.
func lasting(item *unstructured.Unstructured) string {
	if hash := item.GetLabels()["pod-template-hash"]; hash != "" {
		name, _, _ := strings.Cut(item.GetName(), "-"+hash)
		return name
	}
	return item.GetName()
}

func marks(item *unstructured.Unstructured) string {
	if item.GetKind() != "Node" && item.GetKind() != "Namespace" {
		return ""
	}
	data, err := json.Marshal([]any{item.GetLabels(), item.GetAnnotations()})
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// nodeFingerprint returns what semaphore could have changed in a node's kernel and on its disk.
func nodeFingerprint(ctx context.Context, c *testbed.Cluster, n *testbed.Node) (fingerprint, error) {
	out := fingerprint{}
	for what, args := range map[string][]string{
		"link":   {"ip", "-o", "link", "show"},
		"route":  {"ip", "-4", "route", "show", "table", "all"},
		"route6": {"ip", "-6", "route", "show", "table", "all"},
		"rule6":  {"ip", "-6", "rule"},
		"rule":   {"ip", "-4", "rule", "show"},
		"process": {"sh", "-c", "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null | grep -o " +
			"'semaphore-[a-z]*\\|wireguard-go' | sort -u || true"},
	} {
		text, err := n.Exec(ctx, args...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, text)
		}
		for line := range strings.Lines(text) {
			if line = normal(what, line); line != "" && !ofBlock(line, c.PodCIDR) {
				out[what+" "+line] = ""
			}
		}
	}
	if err := addTables(out, n); err != nil {
		return nil, err
	}
	return out, addFiles(out, n)
}

// addTables adds the nftables tables of the node's kernel.
func addTables(out fingerprint, n *testbed.Node) error {
	var tables []*nftables.Table
	err := n.Netns.Do(func() error {
		conn, err := nftables.New()
		if err == nil {
			tables, err = conn.ListTables()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("tables of nftables: %w", err)
	}
	for _, t := range tables {
		out[fmt.Sprintf("nftables table %d %s", t.Family, t.Name)] = ""
	}
	return nil
}

// normal returns a line of ip(8) without the parts that change by themselves: interface indexes and the links of pods.
func normal(what, line string) string {
	fields := strings.Fields(line)
	if len(fields) < 2 || strings.Contains(line, " cali") {
		if what == "process" {
			return strings.TrimSpace(line)
		}
		return ""
	}
	if what == "link" {
		return strings.TrimSuffix(fields[1], ":")
	}
	return strings.Join(fields, " ")
}

// ofBlock reports whether a route is one of BIRD's routes for the blocks of the cluster's own pods. They appear with
// the first pod of a node.
func ofBlock(line string, pods netip.Prefix) bool {
	fields := strings.Fields(line)
	if !strings.Contains(line, " proto bird") {
		return false
	}
	destination := fields[0]
	if destination == "blackhole" {
		destination = fields[1]
	}
	block, err := netip.ParsePrefix(destination)
	if err != nil {
		address, err := netip.ParseAddr(destination)
		return err == nil && pods.Contains(address)
	}
	return pods.Overlaps(block)
}

// nodeDirectories may have files of semaphore. otherOwners are below them but belong to kubelet and containerd: images,
// and remains of pods.
var (
	nodeDirectories = []string{"/etc", "/opt", "/run", "/var"}
	otherOwners     = []string{"/run/containerd", "/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods",
		"/var/log/containers"}
)

// addFiles adds the names of semaphore's files on the node. Directories do not count: the empty key directory stays,
// because the kubelet has created it (docs/removal.md).
func addFiles(out fingerprint, n *testbed.Node) error {
	root := n.Path("/")
	for _, dir := range nodeDirectories {
		err := filepath.WalkDir(n.Path(dir), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed during the walk
			}
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, path)
			switch {
			case err != nil:
				return err
			case slices.Contains(otherOwners, "/"+rel):
				return fs.SkipDir
			case !d.IsDir() && strings.Contains(rel, "semaphore"):
				out["file "+rel] = ""
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("files of %s: %w", n.Name, err)
		}
	}
	return nil
}

// standing returns what semaphore has created in a cluster: objects with their UIDs and versions, and the devices of
// its nodes with their peers.
func (s *Scenario) standing(ctx context.Context, c *testbed.Cluster) (fingerprint, error) {
	out := fingerprint{}
	for _, r := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "services"},
		{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
		{Group: "crd.projectcalico.org", Version: "v1", Resource: "globalnetworksets"},
		{Group: "crd.projectcalico.org", Version: "v1", Resource: "ippools"},
	} {
		items, err := c.Dynamic.Resource(r).List(ctx,
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=semaphore-broker"})
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", r.Resource, err)
		}
		for _, item := range items.Items {
			out[r.Resource+" "+item.GetName()] = string(item.GetUID()) + " " + item.GetResourceVersion()
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: semaphore has made nothing", c.Name)
	}
	for _, n := range c.Nodes {
		links, err := n.Exec(ctx, "ip", "-o", "link", "show", "type", "tun")
		if err != nil {
			return nil, err
		}
		peers, err := n.Exec(ctx, "wg", "show", "all", "allowed-ips")
		if err != nil {
			return nil, err
		}
		routes, err := n.Exec(ctx, "ip", "route", "show", "table", "all", "proto", "94")
		if err != nil {
			return nil, err
		}
		// The index of an interface changes if it is created again.
		var devices []string
		for line := range strings.Lines(links) {
			fields := strings.Fields(line)
			devices = append(devices, fields[0]+fields[1])
		}
		out["devices of "+n.Name] = strings.Join(devices, " ")
		out["peers of "+n.Name] = sortedLines(peers)
		out["routes of "+n.Name] = sortedLines(routes)
	}
	return out, nil
}

func sortedLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

func ip4(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b[:4])) }

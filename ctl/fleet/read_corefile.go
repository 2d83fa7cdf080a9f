package fleet

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/semaphore/internal/coredns"
)

// The namespace and the name of CoreDNS's ConfigMap and Deployment, as kubeadm and most other installers have them, and
// its configuration there.
const (
	System   = "kube-system"
	CoreDNS  = "coredns"
	Corefile = System + "/" + CoreDNS + "/Corefile"
	// NodeLocal is the ConfigMap of NodeLocal DNSCache, as Kubernetes' manifest of it has it.
	NodeLocal = "node-local-dns"
)

// Corefile returns the configuration of CoreDNS: NAMESPACE/NAME/KEY of a ConfigMap with the server blocks that it
// imports from files of another, or NAMESPACE/NAME of one with all its keys. It fails if one of them does not exist or
// cannot be read.
func (c *Objects) Corefile(ctx context.Context, where string) (string, error) {
	namespace, rest, _ := strings.Cut(where, "/")
	name, key, _ := strings.Cut(rest, "/")
	data, err := c.ConfigMap(ctx, namespace, name)
	switch {
	case err != nil:
		return "", err
	case data == nil:
		return "", apierrors.NewNotFound(ConfigMapsGVR.GroupResource(), name)
	case key == "":
		var all []string
		for _, key := range slices.Sorted(maps.Keys(data)) {
			all = append(all, data[key])
		}
		return strings.Join(all, "\n"), nil
	}
	text, ok := data[key]
	if !ok {
		return "", fmt.Errorf("it has no key %s, only %s", key, strings.Join(slices.Sorted(maps.Keys(data)), ", "))
	}
	imported, err := c.imported(ctx, namespace, name, text)
	return text + imported, err
}

// customOf ends the name of the ConfigMap from which distributions that ship a Corefile with an import take the files,
// such as K3s and AKS, for callers that may not read CoreDNS's Deployment, which names it.
const customOf = "-custom"

// imported returns the server blocks that a Corefile imports from files of another ConfigMap; empty for none.
func (c *Objects) imported(ctx context.Context, namespace, name, corefile string) (string, error) {
	pattern, imports := coredns.Import(corefile)
	if !imports {
		return "", nil
	}
	custom := name + customOf
	if d, err := Get[Deployment](ctx, c, DeploymentsGVR, namespace, name); err == nil && d != nil {
		if mounted := d.MountedAt(path.Dir(pattern)); mounted != "" {
			custom = mounted
		}
	}
	data, err := c.ConfigMap(ctx, namespace, custom)
	if err != nil {
		return "", fmt.Errorf("it imports %s: %w", pattern, err)
	}
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if ok, err := path.Match(path.Base(pattern), key); err == nil && ok {
			out.WriteString("\n" + data[key])
		}
	}
	return out.String(), nil
}

// MountedAt returns the ConfigMap that a Deployment mounts at a directory, which may be relative to that of the
// Corefile; empty for none.
func (d *Deployment) MountedAt(dir string) string {
	spec := &d.Spec.Template.Spec
	for _, c := range spec.Containers {
		for _, m := range c.VolumeMounts {
			if m.MountPath != dir && !strings.HasSuffix(m.MountPath, "/"+dir) {
				continue
			}
			for _, v := range spec.Volumes {
				if v.Name == m.Name && v.ConfigMap != nil && v.ConfigMap.Name != "" {
					return v.ConfigMap.Name
				}
			}
		}
	}
	return ""
}

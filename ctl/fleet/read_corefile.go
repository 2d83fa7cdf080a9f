package fleet

import (
	"cmp"
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
		return strings.Join(slices.Sorted(maps.Values(data)), "\n"), nil
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
	custom, _ := c.Mounted(ctx, namespace, name, path.Dir(pattern))
	data, err := c.ConfigMap(ctx, namespace, cmp.Or(custom, name+customOf))
	if err != nil {
		return "", fmt.Errorf("it imports %s: %w", pattern, err)
	}
	files := append(coredns.Others(data, pattern), data[coredns.FileOf(pattern)])
	return "\n" + strings.Join(files, "\n"), nil
}

// Mounted returns the ConfigMap that a Deployment mounts at a directory, which may be relative to that of the Corefile;
// empty if it mounts none, or does not exist.
func (c *Objects) Mounted(ctx context.Context, namespace, deployment, dir string) (string, error) {
	d, err := Get[Deployment](ctx, c, DeploymentsGVR, namespace, deployment)
	if err != nil || d == nil {
		return "", err
	}
	spec := &d.Spec.Template.Spec
	for _, c := range spec.Containers {
		for _, m := range c.VolumeMounts {
			if m.MountPath != dir && !strings.HasSuffix(m.MountPath, "/"+dir) {
				continue
			}
			for _, v := range spec.Volumes {
				if v.Name == m.Name && v.ConfigMap != nil && v.ConfigMap.Name != "" {
					return v.ConfigMap.Name, nil
				}
			}
		}
	}
	return "", nil
}

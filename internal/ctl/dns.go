package ctl

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/ctl/install"
)

// systemNamespace is where CoreDNS is.
const systemNamespace = "kube-system"

// dnsWiring is where a cluster's CoreDNS finds semaphore's server blocks: in a file of their own, if the Corefile
// imports files, or in a section of the Corefile.
type dnsWiring struct {
	*applier
	corefile string
	// version is the resourceVersion of the ConfigMap with the Corefile: a concurrent change is not overwritten.
	version string
	// file is semaphore's key in the ConfigMap custom, whose files the Corefile imports; empty for the section.
	custom, file string
	// has is the current text, and wired whether it is semaphore's. outside are the server blocks of others.
	has     string
	wired   bool
	outside []string
}

func configMapRef(namespace, name string) install.Ref {
	return install.Ref{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Namespace: namespace,
		Name: name}
}

func deploymentRef(namespace, name string) install.Ref {
	return install.Ref{GroupVersionKind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		Namespace: namespace, Name: name}
}

// errNoCoreDNS is the error for clusters whose names another program answers.
var errNoCoreDNS = errors.New("there is no ConfigMap kube-system/coredns: see docs/services.md for other servers")

// dnsOf finds out how CoreDNS is configured.
func dnsOf(ctx context.Context, a *applier) (*dnsWiring, error) {
	found, err := a.get(ctx, configMapRef(systemNamespace, "coredns"))
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, fmt.Errorf("%s: %w", a.cluster.Context, errNoCoreDNS)
	}
	d := &dnsWiring{applier: a, version: found.GetResourceVersion()}
	d.corefile, _, _ = unstructured.NestedString(found.Object, "data", "Corefile")
	d.outside = []string{coredns.WithSection(d.corefile, "")}
	if d.has, d.wired = coredns.Section(d.corefile); d.wired {
		return d, nil // it remains where it is
	}
	pattern, imports := coredns.Import(d.corefile)
	if !imports {
		return d, nil
	}
	deployment, err := a.get(ctx, deploymentRef(systemNamespace, "coredns"))
	if err != nil || deployment == nil {
		return d, err
	}
	if d.custom = mountedFrom(deployment, path.Dir(pattern)); d.custom == "" {
		return d, nil
	}
	d.file = coredns.FileOf(pattern)
	custom, err := a.get(ctx, configMapRef(systemNamespace, d.custom))
	if err != nil || custom == nil {
		return d, err
	}
	d.has, d.wired, _ = unstructured.NestedString(custom.Object, "data", d.file)
	files, _, _ := unstructured.NestedStringMap(custom.Object, "data")
	d.outside = append(d.outside, coredns.Others(files, pattern)...)
	return d, nil
}

// mountedFrom returns the ConfigMap that a Deployment mounts at a directory, which may be relative to that of the
// Corefile; empty for none.
func mountedFrom(deployment *unstructured.Unstructured, dir string) string {
	spec, _, _ := unstructured.NestedMap(deployment.Object, "spec", "template", "spec")
	containers, _, _ := unstructured.NestedSlice(spec, "containers")
	volumes, _, _ := unstructured.NestedSlice(spec, "volumes")
	for _, c := range containers {
		c, _ := c.(map[string]any)
		mounts, _, _ := unstructured.NestedSlice(c, "volumeMounts")
		for _, m := range mounts {
			m, _ := m.(map[string]any)
			at, _ := m["mountPath"].(string)
			if at != dir && !strings.HasSuffix(at, "/"+dir) {
				continue
			}
			for _, v := range volumes {
				v, _ := v.(map[string]any)
				if name, _, _ := unstructured.NestedString(v, "configMap", "name"); v["name"] == m["name"] && name != "" {
					return name
				}
			}
		}
	}
	return ""
}

// remotes returns the blocks for all RemoteClusters, and for the services of all clusters; left names those without a
// block.
func (d *dnsWiring) remotes(ctx context.Context) (text string, left []string, err error) {
	domain := coredns.ClusterDomain(d.corefile)
	list, err := d.client.Resource(v1alpha1.RemoteClusters).List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", nil, fmt.Errorf("%s: RemoteClusters: %w", d.cluster.Context, err)
	}
	var remotes []coredns.Remote
	if err == nil {
		for i := range list.Items {
			var r v1alpha1.RemoteCluster
			if err := fromUnstructured(&list.Items[i], &r); err != nil {
				return "", nil, fmt.Errorf("%s: RemoteCluster %s: %w", d.cluster.Context, list.Items[i].GetName(), err)
			}
			remotes = append(remotes, coredns.Remote{Cluster: r.Name, Prefix: r.Spec.ServicePrefix})
		}
	}
	record, err := d.record(ctx)
	if err != nil {
		return "", nil, err
	}
	imports := record != nil && slices.Contains(record.Values.Components, install.MCS)
	knows := false
	if imports {
		knows, _ = coredns.KnowsImports(imageOfCoreDNS(ctx, d.cluster))
	}
	text, left = coredns.Text(coredns.Of(remotes, d.cluster.Namespace, domain, imports), knows, d.outside...)
	return text, left, nil
}

// write writes blocks where CoreDNS finds them, or removes semaphore's if blocks is empty, and restarts CoreDNS. It
// returns what it did; empty for nothing. The broker may have written them a moment ago: then CoreDNS is restarted all
// the same, so that names resolve when the command ends.
func (d *dnsWiring) write(ctx context.Context, blocks string) (did string, err error) {
	if blocks == d.has && d.wired == (blocks != "") {
		stale, err := d.stale(ctx, blocks)
		if err != nil || !stale {
			return "", err
		}
		return "restarted to read", d.restart(ctx, blocks)
	}
	where := configMapRef(systemNamespace, "coredns")
	value := any(coredns.WithSection(d.corefile, blocks))
	key := "Corefile"
	if d.file != "" {
		where, key, value = configMapRef(systemNamespace, d.custom), d.file, blocks
		if blocks == "" {
			value = nil
		}
	}
	object := map[string]any{"data": map[string]any{key: value}}
	if d.file == "" {
		object["metadata"] = map[string]any{"resourceVersion": d.version}
	}
	patch, err := json.Marshal(object)
	if err != nil {
		return "", err
	}
	options := metav1.PatchOptions{FieldManager: fieldManager}
	_, err = d.of(where).Patch(ctx, where.Name, types.MergePatchType, patch, options)
	if apierrors.IsNotFound(err) && blocks != "" {
		_, err = d.of(where).Create(ctx, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1",
			"kind": "ConfigMap", "metadata": map[string]any{"name": where.Name, "namespace": where.Namespace},
			"data": map[string]any{key: blocks}}}, metav1.CreateOptions{FieldManager: fieldManager})
	}
	if err != nil && !(apierrors.IsNotFound(err) && blocks == "") {
		return "", fmt.Errorf("%s: %s: %w", d.cluster.Context, where, err)
	}
	return "wrote", d.restart(ctx, blocks)
}

// restart replaces CoreDNS's pods as `kubectl rollout restart` does: a running pod gets a changed ConfigMap only after
// a minute or two. With an invalid Corefile the new pods are not ready, and the old ones continue.
func (d *dnsWiring) restart(ctx context.Context, blocks string) error {
	deployment := deploymentRef(systemNamespace, "coredns")
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{"kubectl.kubernetes.io/restartedAt": time.Now().Format(time.RFC3339),
			blocksAnnotation: sumOf(blocks)}}}}})
	if err != nil {
		return err
	}
	_, err = d.of(deployment).Patch(ctx, deployment.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) {
		d.say("CoreDNS is no Deployment kube-system/coredns: it reads its blocks within two minutes, or when it is restarted")
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", d.cluster.Context, deployment, err)
	}
	return d.ready(ctx, deployment)
}

// blocksAnnotation is on CoreDNS's pods: the checksum of the blocks for which semaphorectl restarted them.
const blocksAnnotation = "semaphore.uw.io/dns-blocks"

// sumOf returns the value of the annotation for blocks; nil, which removes it, for none.
func sumOf(blocks string) any {
	if blocks == "" {
		return nil
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(blocks)))[:16]
}

// stale reports whether semaphorectl restarted CoreDNS for other blocks than these.
func (d *dnsWiring) stale(ctx context.Context, blocks string) (bool, error) {
	deployment, err := d.get(ctx, deploymentRef(systemNamespace, "coredns"))
	if err != nil || deployment == nil || blocks == "" {
		return false, err
	}
	sum, found, _ := unstructured.NestedString(deployment.Object, "spec", "template", "metadata", "annotations",
		blocksAnnotation)
	return found && sum != sumOf(blocks), nil
}

// wireDNS makes CoreDNS answer for the remotes of a cluster; without always only if it did before. The broker or
// somebody else may change the ConfigMap at the same moment.
func wireDNS(ctx context.Context, a *applier, always bool) (said string, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		said, err = wireDNSOnce(ctx, a, always)
		return err
	})
	return said, err
}

func wireDNSOnce(ctx context.Context, a *applier, always bool) (said string, err error) {
	d, err := dnsOf(ctx, a)
	if !always && (errors.Is(err, errNoCoreDNS) || err == nil && !d.wired) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	blocks, left, err := d.remotes(ctx)
	if err != nil {
		return "", err
	}
	did, err := d.write(ctx, blocks)
	if err != nil || did == "" {
		return "", err
	}
	where := "a section of ConfigMap kube-system/coredns"
	if d.file != "" {
		where = fmt.Sprintf("ConfigMap kube-system/%s, key %s", d.custom, d.file)
	}
	said = strings.Join(append([]string{"CoreDNS: " + did + " " + where}, left...), "; ")
	daemons, err := a.client.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}).
		Namespace(systemNamespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, one := range daemons.Items {
			if strings.HasPrefix(one.GetName(), "node-local-dns") {
				said += "; NodeLocal DNSCache must forward these names to CoreDNS, see docs/services.md"
			}
		}
	}
	return said, nil
}

func unwireDNS(ctx context.Context, a *applier) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		d, err := dnsOf(ctx, a)
		if errors.Is(err, errNoCoreDNS) || err == nil && !d.wired {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = d.write(ctx, "")
		return err
	})
}

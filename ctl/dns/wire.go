package dns

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// dnsWiring is where a cluster's CoreDNS finds semaphore's server blocks: in a file of their own, if the Corefile
// imports files, or in a section of the Corefile.
type dnsWiring struct {
	*apply.Applier
	corefile string
	// mirrors is the namespace of the mirrors, and imports is set if the broker imports Services.
	mirrors string
	imports bool
	// version is the resourceVersion of the ConfigMap with the Corefile: a concurrent change is not overwritten.
	version string
	// file is semaphore's key in the ConfigMap custom, whose files the Corefile imports; empty for the section.
	custom, file string
	// has is the current text, and wired whether it is semaphore's. outside are the server blocks of others.
	has   string
	Wired bool
	// marked is set if semaphorectl wired it before: blocks that are missing then are lost.
	marked  bool
	outside []string
}

// ErrNoCoreDNS is the error for clusters whose names another program answers.
var ErrNoCoreDNS = errors.New("there is no ConfigMap kube-system/coredns: see docs/services.md for other servers")

// Find reads CoreDNS's configuration. It fails if that cannot be read: with ErrNoCoreDNS if there is none.
func Find(ctx context.Context, a *apply.Applier) (*dnsWiring, error) {
	found, err := a.Get(ctx, apply.ConfigMapRef(fleet.System, fleet.CoreDNS))
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, fmt.Errorf("%s: %w", a.Cluster.Context, ErrNoCoreDNS)
	}
	broker, err := a.Cluster.ConfigOf(ctx, "semaphore-broker")
	if err != nil {
		return nil, err
	}
	d := &dnsWiring{Applier: a, version: found.GetResourceVersion(), imports: broker.MCS.Enabled,
		mirrors: cmp.Or(broker.MirrorNamespace, a.Cluster.Namespace)}
	mark, err := a.Get(ctx, d.markRef())
	if err != nil {
		return nil, err
	}
	d.marked = mark != nil
	d.corefile, _, _ = unstructured.NestedString(found.Object, "data", "Corefile")
	d.outside = []string{coredns.WithSection(d.corefile, "")}
	if d.has, d.Wired = coredns.Section(d.corefile); d.Wired {
		return d, nil // it remains where it is
	}
	pattern, imports := coredns.Import(d.corefile)
	if !imports {
		return d, nil
	}
	d.custom, err = a.Cluster.Objects.Mounted(ctx, fleet.System, fleet.CoreDNS, path.Dir(pattern))
	if err != nil || d.custom == "" {
		return d, err
	}
	d.file = coredns.FileOf(pattern)
	files, err := a.Cluster.Objects.ConfigMap(ctx, fleet.System, d.custom)
	if err != nil || files == nil {
		return d, err
	}
	d.has, d.Wired = files[d.file]
	d.outside = append(d.outside, coredns.Others(files, pattern)...)
	return d, nil
}

// markRef is the ConfigMap that records that there are blocks, where the broker looks for it.
func (d *dnsWiring) markRef() apply.Ref { return apply.ConfigMapRef(d.mirrors, naming.ConfigMapDNS) }

// remotes returns the blocks for all RemoteClusters, and for the services of all clusters; left names those without a
// block.
func (d *dnsWiring) remotes(ctx context.Context) (text string, left []string, err error) {
	domain := coredns.ClusterDomain(d.corefile)
	list, err := d.Cluster.Objects.RemoteClusters(ctx)
	if err != nil {
		return "", nil, err
	}
	var remotes []coredns.Remote
	for _, r := range list {
		remotes = append(remotes, coredns.Remote{Cluster: r.Name, Prefix: r.Spec.ServicePrefix})
	}
	knows := false
	if d.imports {
		knows, _ = coredns.KnowsImports(imageOfCoreDNS(ctx, d.Cluster))
	}
	text, left = coredns.Text(coredns.Of(remotes, d.mirrors, domain, d.imports), knows, d.outside...)
	return text, left, nil
}

// write writes blocks where CoreDNS finds them, or removes semaphore's if blocks is empty, and restarts CoreDNS. It
// returns the verb for it; empty for nothing. The broker may have written them a moment ago: then CoreDNS is restarted
// all the same, so that names resolve when the command ends.
func (d *dnsWiring) write(ctx context.Context, blocks string) (did string, err error) {
	if blocks == d.has && d.Wired == (blocks != "") {
		stale, err := d.stale(ctx, blocks)
		if err != nil || !stale {
			return "", err
		}
		return "restarted to read", d.restart(ctx, blocks)
	}
	where := apply.ConfigMapRef(fleet.System, fleet.CoreDNS)
	value := any(coredns.WithSection(d.corefile, blocks))
	key, version := "Corefile", d.version
	if d.file != "" {
		version, where, key, value = "", apply.ConfigMapRef(fleet.System, d.custom), d.file, blocks
		if blocks == "" {
			value = nil
		}
	}
	if err := apply.SetData(ctx, d.Of(where), where, map[string]any{key: value}, version); err != nil &&
		!(apierrors.IsNotFound(err) && blocks == "") {
		return "", fmt.Errorf("%s: %s: %w", d.Cluster.Context, where, err)
	}
	return "wrote", d.restart(ctx, blocks)
}

// restart replaces CoreDNS's pods as `kubectl rollout restart` does: a running pod gets a changed ConfigMap only after
// a minute or two. With an invalid Corefile the new pods are not ready, and the old ones continue.
func (d *dnsWiring) restart(ctx context.Context, blocks string) error {
	deployment := apply.WorkloadRef("Deployment", fleet.System, fleet.CoreDNS)
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{"kubectl.kubernetes.io/restartedAt": time.Now().Format(time.RFC3339),
			blocksAnnotation: sumOf(blocks)}}}}})
	if err != nil {
		return err
	}
	_, err = d.Of(deployment).Patch(ctx, deployment.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: apply.FieldManager})
	if apierrors.IsNotFound(err) {
		d.Say("CoreDNS is no Deployment kube-system/coredns: it reads its blocks within two minutes, or when it is restarted")
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", d.Cluster.Context, deployment, err)
	}
	return d.Ready(ctx, deployment)
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
	deployment, err := d.Get(ctx, apply.WorkloadRef("Deployment", fleet.System, fleet.CoreDNS))
	if err != nil || deployment == nil || blocks == "" {
		return false, err
	}
	sum, found, _ := unstructured.NestedString(deployment.Object, "spec", "template", "metadata", "annotations",
		blocksAnnotation)
	return found && sum != sumOf(blocks), nil
}

// Wire makes CoreDNS answer for the remotes of a cluster, and prints the changes; without always only if it did before.
// The broker or another program may change the ConfigMap at the same moment. It fails if the apiserver refuses, and
// with always for a cluster without CoreDNS.
func Wire(ctx context.Context, w io.Writer, a *apply.Applier, always bool) error {
	said := ""
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		said, err = wireDNSOnce(ctx, a, always)
		return err
	})
	if err != nil || said == "" {
		return err
	}
	_, err = fmt.Fprintf(w, "%s: %s\n", show.Printable(a.Cluster.Context), show.Printable(said))
	return err
}

func wireDNSOnce(ctx context.Context, a *apply.Applier, always bool) (said string, err error) {
	d, err := Find(ctx, a)
	if !always && (errors.Is(err, ErrNoCoreDNS) || err == nil && !d.Wired && !d.marked) {
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
	if err == nil && blocks != "" {
		err = d.mark(ctx) // after the blocks: one without the other is reported as a loss
	}
	if err != nil || did == "" {
		return "", err
	}
	where := "a section of ConfigMap kube-system/coredns"
	if d.file != "" {
		where = fmt.Sprintf("ConfigMap kube-system/%s, key %s", d.custom, d.file)
	}
	said = strings.Join(append([]string{"CoreDNS: " + did + " " + where}, left...), "; ")
	daemons, _ := fleet.List[metav1.PartialObjectMetadata](ctx, a.Cluster.Objects, fleet.DaemonSetsGVR, fleet.System,
		metav1.ListOptions{})
	for _, one := range daemons {
		if strings.HasPrefix(one.Name, "node-local-dns") {
			said += "; NodeLocal DNSCache must forward these names to CoreDNS, see docs/services.md"
		}
	}
	return said, nil
}

// mark records that there should be blocks, for the broker and for the next call.
func (d *dnsWiring) mark(ctx context.Context) error {
	if d.marked {
		return nil
	}
	ref := d.markRef()
	_, err := apply.ServerSideApply(ctx, d.Of(ref), ref.Name, map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": ref.Name, "namespace": ref.Namespace,
			"labels": map[string]any{apply.PartOf: "semaphore"}},
		"data": map[string]any{"README": "semaphorectl put server blocks into CoreDNS's configuration. If they are " +
			"missing, the broker reports CoreDNSLost, and restores them with manageCoreDNS. To end that, delete this " +
			"ConfigMap."},
	}, true)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", d.Cluster.Context, ref, err)
	}
	return nil
}

// Unwire removes semaphore's blocks from CoreDNS's configuration. It fails if the apiserver refuses.
func Unwire(ctx context.Context, a *apply.Applier) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		d, err := Find(ctx, a)
		if errors.Is(err, ErrNoCoreDNS) || err == nil && !d.Wired && !d.marked {
			return nil
		}
		if err != nil {
			return err
		}
		// First, so that the broker neither reports nor restores the removed blocks.
		ref := d.markRef()
		if err := a.Of(ref).Delete(ctx, ref.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s: deleting %s: %w", a.Cluster.Context, ref, err)
		}
		if !d.Wired {
			return nil
		}
		_, err = d.write(ctx, "")
		return err
	})
}

package bundle

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/ctl/dns"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/read"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// bundledObjects are the objects of one file. Secrets are never read.
type bundledObjects struct {
	// file is empty for objects of which only the names are wanted, to hide them in others.
	file string
	// of has one entry for each group or version; the first that the cluster serves is read.
	of []schema.GroupVersionResource
	// namespace is empty for all namespaces, and partsNamespace for that of the parts.
	namespace string
	selector  string
	// named means that somebody chose the names of the objects, which --hash-names hides.
	named bool
	// keep is nil for all objects.
	keep func(*unstructured.Unstructured) bool
}

const partsNamespace = "the parts'"

// bundled are the objects of an archive: what the parts read and write and what decides about traffic, of types that
// kubectl cluster-info dump leaves out. That has nodes, Services, workloads, pods with their logs, and events.
var bundled = []bundledObjects{
	{of: one(read.NodesGVR), named: true},
	{of: one(read.ServicesGVR), selector: ownedSelector, named: true},
	{file: "configmaps", of: one(read.ConfigMapsGVR), namespace: partsNamespace,
		keep: func(o *unstructured.Unstructured) bool { return strings.Contains(o.GetName(), ourName) }},
	{file: "corefiles", of: one(read.ConfigMapsGVR), namespace: dns.SystemNamespace, keep: corefile},
	{file: "leases", of: in("coordination.k8s.io", "leases", "v1"), namespace: partsNamespace},
	{file: "remoteclusters", of: one(v1alpha1.RemoteClusters)},
	{file: "endpointslices", of: one(read.SlicesGVR), selector: ownedSelector},
	{file: "serviceexports", of: in("multicluster.x-k8s.io", "serviceexports", read.MCSVersions...), named: true},
	{file: "serviceimports", of: in("multicluster.x-k8s.io", "serviceimports", read.MCSVersions...), named: true},
	{file: "ippools", of: calicoTypes("ippools")},
	{file: "ipreservations", of: calicoTypes("ipreservations")},
	{file: "blockaffinities", of: calicoTypes("blockaffinities")},
	{file: "globalnetworksets", of: calicoTypes("globalnetworksets"), named: true},
	{file: "networksets", of: calicoTypes("networksets"), named: true},
	{file: "tiers", of: calicoTypes("tiers"), named: true},
	{file: "globalnetworkpolicies", of: calicoTypes("globalnetworkpolicies"), named: true},
	{file: "calico-networkpolicies", of: calicoTypes("networkpolicies"), named: true},
	{file: "networkpolicies", of: in("networking.k8s.io", "networkpolicies", "v1"), named: true},
}

func one(r schema.GroupVersionResource) []schema.GroupVersionResource {
	return []schema.GroupVersionResource{r}
}

// in returns a resource of a group in some versions.
func in(group, resource string, versions ...string) (all []schema.GroupVersionResource) {
	for _, version := range versions {
		all = append(all, schema.GroupVersionResource{Group: group, Version: version, Resource: resource})
	}
	return all
}

func calicoTypes(resource string) []schema.GroupVersionResource {
	return append(in("crd.projectcalico.org", resource, "v1"), in("projectcalico.org", resource, "v3")...)
}

// corefile reports whether a ConfigMap is CoreDNS's, or one whose files a Corefile imports.
func corefile(o *unstructured.Unstructured) bool {
	return strings.Contains(o.GetName(), "coredns") || strings.HasSuffix(o.GetName(), "-dns-custom")
}

// ourName is in the names of semaphore's ConfigMaps; the namespace can have those of others.
const ourName = "semaphore"

const ownedSelector = naming.LabelManagedBy + "=" + naming.ManagedByBroker

// objects adds the objects of one file. It records the error that it returns.
func (b *bundle) objects(ctx context.Context, client dynamic.Interface, c *fleet.Cluster, of *bundledObjects) error {
	namespace := of.namespace
	if namespace == partsNamespace {
		namespace = c.Namespace
	}
	for _, resource := range of.of {
		list, err := client.Resource(resource).Namespace(namespace).List(ctx,
			metav1.ListOptions{LabelSelector: of.selector})
		if apierrors.IsNotFound(err) {
			continue // the cluster does not serve that type
		}
		if err != nil {
			b.fail("%s: %s: %v", c.Context, cmp.Or(of.file, resource.Resource), fleet.Plain(err))
			return err
		}
		b.addObjects(c.Context+"/objects/"+of.file+".json", of, list)
		return nil
	}
	return nil
}

// addObjects adds objects without fields that nobody needs, and records their names.
func (b *bundle) addObjects(file string, of *bundledObjects, list *unstructured.UnstructuredList) {
	if of.keep != nil {
		list.Items = slices.DeleteFunc(list.Items, func(o unstructured.Unstructured) bool { return !of.keep(&o) })
	}
	for i := range list.Items {
		o := &list.Items[i]
		o.SetManagedFields(nil)
		annotations := o.GetAnnotations()
		delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
		o.SetAnnotations(annotations)
		if data, ok := o.Object["data"].(map[string]any); ok && of.file == "corefiles" {
			for key, text := range data {
				data[key] = removeDirectives(fmt.Sprint(text))
			}
		}
		if of.named {
			b.names[o.GetName()], b.names[o.GetNamespace()] = true, true
		}
		b.names[annotations[naming.AnnotationSourceName]] = true
		b.names[annotations[naming.AnnotationSourceNamespace]] = true
	}
	if of.file == "" {
		return
	}
	data, err := json.MarshalIndent(list, "", " ")
	if err != nil {
		b.fail("%s: %v", file, err)
		return
	}
	b.files[file] = string(data)
}

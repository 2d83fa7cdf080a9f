package bundle

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// bundledObjects are the objects of one file. Secrets are never read.
type bundledObjects struct {
	// file is empty if only the names of the objects are wanted, to hide them in others.
	file string
	// of has one entry for each group or version; the first that the cluster serves is read.
	of []schema.GroupVersionResource
	// namespace is empty for all namespaces, and partsNamespace for that of the parts.
	namespace string
	selector  string
	// named means that users chose the names of the objects, which --hash-names hides.
	named bool
	keep  func(*unstructured.Unstructured) bool
}

const partsNamespace = "the parts'"

var (
	leases       = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	kubePolicies = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}
)

// bundled are the objects of an archive: those that the parts read and write and that decide about traffic, of types
// that kubectl cluster-info dump leaves out. That has nodes, Services, workloads, pods with their logs, and events.
var bundled = []bundledObjects{
	{of: one(fleet.NodesGVR), named: true},
	{of: one(fleet.ServicesGVR), selector: ownedSelector, named: true},
	{file: "configmaps", of: one(fleet.ConfigMapsGVR), namespace: partsNamespace,
		keep: func(o *unstructured.Unstructured) bool { return strings.Contains(o.GetName(), ourName) }},
	{file: "corefiles", of: one(fleet.ConfigMapsGVR), namespace: fleet.System, keep: corefile},
	{file: "leases", of: one(leases), namespace: partsNamespace},
	{file: "remoteclusters", of: one(v1alpha1.RemoteClusters)},
	{file: "endpointslices", of: one(fleet.SlicesGVR), selector: ownedSelector},
	{file: "serviceexports", of: fleet.MCS("serviceexports"), named: true},
	{file: "serviceimports", of: fleet.MCS("serviceimports"), named: true},
	{file: "ippools", of: fleet.CalicoTypes("ippools")},
	{file: "ipreservations", of: fleet.CalicoTypes("ipreservations")},
	{file: "blockaffinities", of: fleet.CalicoTypes("blockaffinities")},
	{file: "globalnetworksets", of: fleet.CalicoTypes("globalnetworksets"), named: true},
	{file: "networksets", of: fleet.CalicoTypes("networksets"), named: true},
	{file: "tiers", of: fleet.CalicoTypes("tiers"), named: true},
	{file: "globalnetworkpolicies", of: fleet.CalicoTypes("globalnetworkpolicies"), named: true},
	{file: "calico-networkpolicies", of: fleet.CalicoTypes("networkpolicies"), named: true},
	{file: "networkpolicies", of: one(kubePolicies), named: true},
}

func one(r schema.GroupVersionResource) []schema.GroupVersionResource {
	return []schema.GroupVersionResource{r}
}

// corefile reports whether a ConfigMap is CoreDNS's, or one whose files a Corefile imports.
func corefile(o *unstructured.Unstructured) bool {
	return strings.Contains(o.GetName(), "coredns") || strings.HasSuffix(o.GetName(), "-dns-custom")
}

// ourName is in the names of semaphore's ConfigMaps; the namespace can have those of others.
const ourName = "semaphore"

const ownedSelector = naming.LabelManagedBy + "=" + naming.ManagedByBroker

// objects adds the objects of one file. It records the error that it returns.
func (b *bundle) objects(ctx context.Context, c *fleet.Cluster, of *bundledObjects) error {
	namespace := of.namespace
	if namespace == partsNamespace {
		namespace = c.Namespace
	}
	list, err := c.Objects.First(ctx, of.of, namespace, metav1.ListOptions{LabelSelector: of.selector})
	if fleet.Silent(err) {
		err = fmt.Errorf("%s: %w", c.Context, fleet.Plain(err))
	}
	if err != nil {
		b.fail("%v", err)
		return err
	}
	if list != nil {
		b.addObjects(c.Context+"/objects/"+of.file+".json", of, list)
	}
	return nil
}

// addObjects adds objects without needless fields, and records their names.
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

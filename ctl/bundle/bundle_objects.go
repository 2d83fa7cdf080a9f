package bundle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/ctl/dns"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/read"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// bundledObjects are the objects of one file. Secrets are never read.
type bundledObjects struct {
	file string
	// of has one entry for each group or version; the first that the cluster serves is read.
	of []schema.GroupVersionResource
	// namespace is empty for all namespaces, and partsNamespace for that of the parts.
	namespace       string
	selector, field string
	// named means that somebody chose the names of the objects, which --hash-names hides.
	named bool
	// exported is the selector of Services that users export; nil for other objects.
	exported func(read.PartConfig) string
	// keep is nil for all objects.
	keep func(*unstructured.Unstructured) bool
}

const partsNamespace = "the parts'"

// bundled are the objects of an archive: what the parts read and write, and what decides about traffic.
var bundled = []bundledObjects{
	{file: "pods", of: one(read.PodsGVR), namespace: partsNamespace, selector: partsSelector, named: true},
	{file: "deployments", of: in("apps", "deployments", "v1"), namespace: partsNamespace, selector: partsSelector},
	{file: "daemonsets", of: in("apps", "daemonsets", "v1"), namespace: partsNamespace, selector: partsSelector},
	{file: "configmaps", of: in("", "configmaps", "v1"), namespace: partsNamespace,
		keep: func(o *unstructured.Unstructured) bool { return strings.Contains(o.GetName(), ourName) }},
	{file: "corefiles", of: in("", "configmaps", "v1"), namespace: dns.SystemNamespace, keep: corefile},
	{file: "leases", of: in("coordination.k8s.io", "leases", "v1"), namespace: partsNamespace},
	{file: "events", of: in("", "events", "v1"), namespace: partsNamespace},
	{file: "events-of-broker", of: in("", "events", "v1"), field: "reportingComponent=semaphore.uw.io/broker"},
	{file: "events-of-exporter", of: in("", "events", "v1"), field: "reportingComponent=semaphore.uw.io/exporter"},
	{file: "remoteclusters", of: one(v1alpha1.RemoteClusters)},
	{file: "services", of: one(read.ServicesGVR), selector: ownedSelector, named: true},
	{file: "exported-for-mirrors", of: one(read.ServicesGVR), named: true,
		exported: func(c read.PartConfig) string { return c.MirrorSelector }},
	{file: "exported-as-global", of: one(read.ServicesGVR), named: true,
		exported: func(c read.PartConfig) string { return c.GlobalSelector }},
	{file: "endpointslices", of: one(read.SlicesGVR), selector: ownedSelector},
	{file: "serviceexports", of: in("multicluster.x-k8s.io", "serviceexports", read.MCSVersions...), named: true},
	{file: "serviceimports", of: in("multicluster.x-k8s.io", "serviceimports", read.MCSVersions...), named: true},
	{file: "nodes", of: one(read.NodesGVR), named: true},
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

// The namespace can have pods and ConfigMaps of others. partsSelector selects the parts; semaphore's ConfigMaps have
// ourName in their names.
const partsSelector, ourName = "app.kubernetes.io/name=semaphore", "semaphore"

const ownedSelector = naming.LabelManagedBy + "=" + naming.ManagedByBroker

// logLines is how many lines of each part's log an archive has.
const logLines = 2000

// objects adds the objects of one file, and the logs of pods. It records the error that it returns.
func (b *bundle) objects(ctx context.Context, client dynamic.Interface, c *fleet.Cluster, of *bundledObjects) error {
	namespace := of.namespace
	if namespace == partsNamespace {
		namespace = c.Namespace
	}
	selector := of.selector
	if of.exported != nil {
		selector = of.exported(b.exporter)
	}
	for _, resource := range of.of {
		list, err := client.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{
			LabelSelector: selector, FieldSelector: of.field})
		if apierrors.IsNotFound(err) {
			continue // the cluster does not serve that type
		}
		if err != nil {
			b.fail("%s: %s: %v", c.Context, of.file, fleet.Plain(err))
			return err
		}
		b.addObjects(c.Context+"/objects/"+of.file+".json", of, list)
		if of.file == "pods" {
			for i := range list.Items {
				b.logs(ctx, c, &list.Items[i])
			}
		}
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
		removeSecretValues(o.Object)
		annotations := o.GetAnnotations()
		delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
		o.SetAnnotations(annotations)
		if data, ok := o.Object["data"].(map[string]any); ok && of.file == "corefiles" {
			for key, text := range data {
				data[key] = removeDirectives(fmt.Sprint(text))
			}
		}
		if of.file == "configmaps" {
			b.readSelectors(o)
		}
		if of.named {
			b.names[o.GetName()], b.names[o.GetNamespace()] = true, true
		}
		b.names[annotations[naming.AnnotationSourceName]] = true
		b.names[annotations[naming.AnnotationSourceNamespace]] = true
	}
	data, err := json.MarshalIndent(list, "", " ")
	if err != nil {
		b.fail("%s: %v", file, err)
		return
	}
	b.files[file] = string(data)
}

// readSelectors reads which Services the exporter exports, if a ConfigMap has its configuration.
func (b *bundle) readSelectors(o *unstructured.Unstructured) {
	data, _, _ := unstructured.NestedStringMap(o.Object, "data")
	for _, text := range data {
		var c read.PartConfig
		if err := yaml.Unmarshal([]byte(text), &c); err != nil {
			continue // another file
		}
		b.exporter.MirrorSelector = cmp.Or(c.MirrorSelector, b.exporter.MirrorSelector)
		b.exporter.GlobalSelector = cmp.Or(c.GlobalSelector, b.exporter.GlobalSelector)
	}
}

// logs adds the end of the log of each container of a pod, and that of the container before it if it was restarted.
func (b *bundle) logs(ctx context.Context, c *fleet.Cluster, pod *unstructured.Unstructured) {
	client, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		b.fail("%s: client for the apiserver: %v", c.Context, err)
		return
	}
	base, _, err := rest.DefaultServerUrlFor(c.Config)
	if err != nil {
		b.fail("%s: %v", c.Context, err)
		return
	}
	log := func(container, file string, previous bool) {
		at := base.JoinPath("api/v1/namespaces", pod.GetNamespace(), "pods", pod.GetName(), "log")
		at.RawQuery = fmt.Sprintf("container=%s&tailLines=%d&previous=%t", container, logLines, previous)
		text, err := get(ctx, client, at.String())
		if err != nil {
			b.fail("%s: log %s of %s: %v", c.Context, file, pod.GetName(), err)
			return
		}
		b.files[c.Context+"/logs/"+pod.GetName()+"-"+file+".log"] = text
	}
	for _, kind := range []string{"initContainers", "containers"} {
		containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", kind)
		for _, one := range containers {
			container, _ := one.(map[string]any)
			name, _ := container["name"].(string)
			log(name, name, false)
			if restarted(pod, name) {
				log(name, name+"-previous", true)
			}
		}
	}
}

// restarted reports whether a container of a pod ran before.
func restarted(pod *unstructured.Unstructured, container string) bool {
	for _, kind := range []string{"initContainerStatuses", "containerStatuses"} {
		all, _, _ := unstructured.NestedSlice(pod.Object, "status", kind)
		for _, one := range all {
			status, _ := one.(map[string]any)
			if _, terminated, _ := unstructured.NestedMap(status, "lastState", "terminated"); terminated &&
				status["name"] == container {
				return true
			}
		}
	}
	return false
}

// maxLog bounds the log of one container in bytes, whatever the length of its lines.
const maxLog = 16 << 20

// get returns the body of an answer of the apiserver.
func get(ctx context.Context, client *http.Client, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxLog))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New("the apiserver answers " + answer.Status)
	}
	return string(text), err
}

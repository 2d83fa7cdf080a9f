package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// exampleWorkload is what the examples of docs/mcs-examples.md assume in each cluster: the namespace my-ns, and a pod
// of the Service my-svc, with a container for each port.
const exampleWorkload = `
apiVersion: v1
kind: Namespace
metadata: {name: my-ns}
---
apiVersion: v1
kind: Pod
metadata: {name: my-pod, namespace: my-ns, labels: {app: my-svc}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - {name: http, image: testbed.local/testbed:1, command: [testbed, echo]}
    - {name: metrics, image: testbed.local/testbed:1, command: [testbed, echo, --listen, ":9090"]}
    - {name: admin, image: testbed.local/testbed:1, command: [testbed, echo, --listen, ":8081"]}
`

// examples applies the KEP's examples in docs/mcs-examples.md as printed, and compares the clusters with what it
// prints.
func (b *mcsBed) examples(ctx context.Context, t *testing.T) {
	d := &documentsBed{Scenario: b.Scenario, repo: b.in.repo, dir: t.TempDir()}
	d.state = testkit.Value(testbed.Find(b.tb.ID))(t)
	printed := slices.DeleteFunc(readBlocks(t, d.repo, "docs/mcs-examples.md"),
		func(one block) bool { return one.section != "The KEP's examples" })
	if len(printed) != 8 {
		t.Fatalf("docs/mcs-examples.md has %d blocks of examples, and this test knows 8", len(printed))
	}
	offer, read, status, imported, ports, conflict, external := printed[0], printed[1], printed[2], printed[3],
		printed[4], printed[5], printed[6]
	apply := func(c *testbed.Cluster, text string) {
		t.Helper()
		testkit.Value(c.Kubectl(ctx, strings.NewReader(text), "apply", "-f", "-"))(t)
	}
	for _, c := range b.tb.Clusters() {
		must(t, c.ApplyYAML(ctx, exampleWorkload))
	}
	for _, c := range b.tb.Clusters() {
		testkit.Value(c.Kubectl(ctx, nil, "-n", "my-ns", "wait", "--for=condition=Ready", "pod/my-pod", "--timeout=300s"))(t)
	}
	// shown waits until an object has what a document of a block shows.
	shown := func(c *testbed.Cluster, what string, one block, document int) {
		t.Helper()
		var want map[string]any
		must(t, yaml.Unmarshal([]byte(strings.Split(one.text, "---\n")[document]), &want))
		if err := until(ctx, 2*conformant, func() error {
			out, err := c.Kubectl(ctx, nil, "-n", "my-ns", "get", what, "-o", "json")
			if err != nil {
				return err
			}
			var have any
			if err := json.Unmarshal([]byte(out), &have); err != nil {
				return err
			}
			return differs("", want, have)
		}); err != nil {
			t.Errorf("%s:%d, %s of %s: %v", one.file, one.line, what, c.Name, err)
		}
	}
	const export = "serviceexports.multicluster.x-k8s.io/my-svc"
	const serviceImport = "serviceimports.multicluster.x-k8s.io/my-svc"
	answers := func(port int, from ...*testbed.Cluster) {
		t.Helper()
		command := fmt.Sprintf("curl -sS --max-time 2 http://my-svc.my-ns.svc.%s:%d/", clusterset, port)
		for _, c := range b.tb.Clusters() {
			missing := map[string]bool{}
			for _, f := range from {
				p := testkit.Value(f.Pod(ctx, "my-ns", "my-pod"))(t)
				missing[p.IP.String()] = true
			}
			if err := until(ctx, 2*conformant, func() error {
				out, err := c.ExecPod(ctx, "shop", "request", "sh", "-c", command)
				if err != nil {
					return err
				}
				var a answer
				if err := json.Unmarshal([]byte(out), &a); err != nil {
					return fmt.Errorf("%w: %q", err, out)
				}
				if delete(missing, a.IP); len(missing) > 0 {
					return fmt.Errorf("no answer of %v", slices.Sorted(maps.Keys(missing)))
				}
				return nil
			}); err != nil {
				t.Errorf("%q in %s: %v", command, c.Name, err)
			}
		}
	}

	// A Service of one cluster.
	apply(b.c1, offer.text)
	shown(b.c2, serviceImport, imported, 0)
	shown(b.c1, serviceImport, imported, 0)
	shown(b.c2, "endpointslices/mcs-my-ns-73736d-my-svc-c1-1", imported, 1)
	shown(b.c1, export, status, 0)
	d.block(ctx, t, b.c1, read)
	answers(80, b.c1)
	answers(9090, b.c1)

	// A Service of several clusters.
	own, _, _ := strings.Cut(offer.text, "  ports:\n")
	_, alsoExported, _ := strings.Cut(offer.text, "---\n")
	apply(b.c2, own+ports.text+"---\n"+alsoExported)
	for _, c := range b.tb.Clusters() {
		if err := until(ctx, conformant, func() error {
			i, err := b.imports[c].Get(ctx, "my-ns", "my-svc")
			if err != nil {
				return err
			}
			var names, of []string
			for _, p := range i.Spec.Ports {
				names = append(names, p.Name)
			}
			for _, s := range i.Status.Clusters {
				of = append(of, s.Cluster)
			}
			if !slices.Equal(names, []string{"http", "metrics", "admin"}) || !slices.Equal(of, []string{"c1", "c2"}) {
				return fmt.Errorf("ports %q of %q", names, of)
			}
			return nil
		}); err != nil {
			t.Errorf("the ServiceImport of both in %s: %v", c.Name, err)
		}
		shown(c, export, block{file: conflict.file, line: conflict.line,
			text: "status:\n  conditions:\n" + conflict.text}, 0)
	}
	answers(80, b.c1, b.c2)
	answers(9090, b.c1)
	answers(8081, b.c2)

	// From c1 to c2, and the end.
	for _, c := range b.tb.Clusters() {
		must(t, b.exports[c].Delete(ctx, "my-ns", "my-svc", metav1.DeleteOptions{}))
		if c == b.c1 {
			answers(8081, b.c2)
			answers(80, b.c2)
			continue
		}
		for _, c := range b.tb.Clusters() {
			if err := until(ctx, conformant, func() error {
				_, err := b.imports[c].Get(ctx, "my-ns", "my-svc")
				if apierrors.IsNotFound(err) {
					return nil
				}
				return errors.Join(err, errors.New("the ServiceImport is there"))
			}); err != nil {
				t.Errorf("%s after the last ServiceExport: %v", c.Name, err)
			}
		}
	}

	// ExternalName.
	must(t, b.c1.Client.CoreV1().Services("my-ns").Delete(ctx, "my-svc", metav1.DeleteOptions{}))
	testkit.Value(b.c1.Client.CoreV1().Services("my-ns").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "my-svc"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"},
	}, metav1.CreateOptions{}))(t)
	apply(b.c1, alsoExported)
	shown(b.c1, export, block{file: external.file, line: external.line,
		text: "status:\n  conditions:\n" + external.text}, 0)
	for _, c := range b.tb.Clusters() {
		must(t, c.Client.CoreV1().Namespaces().Delete(ctx, "my-ns", metav1.DeleteOptions{}))
	}
}

// differs returns where an object lacks what is printed. Addresses are those of the example: they only have to be as
// many. Of a list with types, such as conditions, each printed entry must exist.
func differs(path string, printed, have any) error {
	switch want := printed.(type) {
	case map[string]any:
		is, ok := have.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is %v", path, have)
		}
		for key, value := range want {
			if err := differs(path+"."+key, value, is[key]); err != nil {
				return err
			}
		}
	case []any:
		is, ok := have.([]any)
		if !ok || len(is) < len(want) {
			return fmt.Errorf("%s is %v, not %v", path, have, want)
		}
		if strings.HasSuffix(path, ".ips") || strings.HasSuffix(path, ".addresses") {
			return nil
		}
		for i, value := range want {
			err := differs(fmt.Sprintf("%s[%d]", path, i), value, is[i])
			if one, ok := value.(map[string]any); ok && one["type"] != nil {
				err = fmt.Errorf("%s has no %v: %v", path, one, is)
				for _, other := range is {
					if differs(path, one, other) == nil {
						err = nil
					}
				}
			}
			if err != nil {
				return err
			}
		}
	default:
		if fmt.Sprint(printed) != fmt.Sprint(have) {
			return fmt.Errorf("%s is %v, not %v", path, have, printed)
		}
	}
	return nil
}

// TestDiffers checks that a difference to what is printed is found.
func TestDiffers(t *testing.T) {
	const printed = `
spec: {type: ClusterSetIP, ips: [10.102.14.7], ports: [{name: http, port: 80}]}
status: {conditions: [{type: Valid, status: "True", message: all is well}]}`
	for change, differ := range map[string]bool{
		"":                               false,
		"10.102.14.7 10.9.9.9":           false,
		"{name: {protocol: TCP, name:":   false, // more than is printed
		"[{type: [{type: Ready}, {type:": false,
		"ClusterSetIP Headless":          true,
		"[10.102.14.7] []":               true,
		"80 8080":                        true,
		"Valid Ready":                    true,
		"well bad":                       true,
		"ports: other:":                  true,
	} {
		text := printed
		if old, now, ok := strings.Cut(change, " "); ok {
			text = strings.Replace(printed, old, now, 1)
		}
		var want, have map[string]any
		must(t, yaml.Unmarshal([]byte(printed), &want))
		must(t, yaml.Unmarshal([]byte(text), &have))
		if err := differs("", want, have); (err != nil) != differ {
			t.Errorf("%q: %v", change, err)
		}
	}
}

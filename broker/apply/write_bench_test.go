package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// BenchmarkWrite is one change of an object as it is written, by an update under a precondition, beside the same by
// server-side apply: what ADR 14 rests on. apiserver-CPU-ms counts what the apiserver uses for it, whatever else the
// machine does.
func BenchmarkWrite(b *testing.B) {
	cfg := kubetest.Start(b)
	kubetest.InstallCalico(b, cfg, kubetest.CalicoCRD, "globalnetworksets")
	admin := kubernetes.NewForConfigOrDie(kube.Protobuf(cfg))
	kubetest.Namespace(b, admin, "mirrors")
	calico := testkit.Value(kube.Calico(cfg))(b)
	addresses := func(n, version int) (all []string) {
		for i := range n - 1 {
			all = append(all, fmt.Sprintf("10.2.%d.%d", i/250, i%250+1))
		}
		return append(all, fmt.Sprintf("10.3.%d.%d", version/250, version%250+1))
	}
	b.Run("Service", func(b *testing.B) {
		measureWrites(b, cfg, inOne[*corev1.Service](admin.CoreV1().Services("mirrors")),
			"/api/v1/namespaces/mirrors/services/", "v1", "Service",
			func(version int) *corev1.Service { return service("s", "c2", int32(1+version%60000), false) }, mergeService)
	})
	b.Run("EndpointSlice-100", func(b *testing.B) {
		measureWrites(b, cfg, inOne[*discoveryv1.EndpointSlice](admin.DiscoveryV1().EndpointSlices("mirrors")),
			"/apis/discovery.k8s.io/v1/namespaces/mirrors/endpointslices/", "discovery.k8s.io/v1", "EndpointSlice",
			func(version int) *discoveryv1.EndpointSlice {
				return slice("s", "c2", "IPv4", addresses(100, version)...)
			},
			func(have, want *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
				out := have.DeepCopy()
				out.Endpoints = want.Endpoints
				return out
			})
	})
	b.Run("GlobalNetworkSet-1000", func(b *testing.B) {
		measureWrites(
			b,
			cfg,
			calicoClient[*calicov3.GlobalNetworkSet]{
				func(string) kube.CalicoResource[*calicov3.GlobalNetworkSet] { return calico.GlobalNetworkSets() },
			},
			"/apis/crd.projectcalico.org/v1/globalnetworksets/",
			"crd.projectcalico.org/v1",
			"GlobalNetworkSet",
			func(version int) *calicov3.GlobalNetworkSet {
				set := &calicov3.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: "s", Labels: bearing("c2")}}
				for _, a := range addresses(1000, version) {
					set.Spec.Nets = append(set.Spec.Nets, a+"/32")
				}
				return set
			},
			func(have, want *calicov3.GlobalNetworkSet) *calicov3.GlobalNetworkSet {
				out := have.DeepCopy()
				out.Spec.Nets = want.Spec.Nets
				return out
			},
		)
	})
}

func measureWrites[T writes.Object](b *testing.B, cfg *rest.Config, c client[T], path, apiVersion, kind string,
	version func(int) T, merge func(have, want T) T) {
	ctx := b.Context()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	plain := kubernetes.NewForConfigOrDie(cfg).Discovery().RESTClient()
	cpu := func() (seconds float64) {
		text, err := plain.Get().AbsPath("/metrics").DoRaw(context.WithoutCancel(ctx))
		must(err)
		_, text2, _ := strings.Cut(string(text), "\nprocess_cpu_seconds_total ")
		fmt.Sscan(text2, &seconds)
		return seconds
	}
	measure := func(name string, write func(version int)) {
		b.Run(name, func(b *testing.B) {
			write(0)
			before, n := cpu(), 0
			begin := time.Now()
			for b.Loop() {
				n++
				write(n)
			}
			took := time.Since(begin)
			b.ReportMetric((cpu()-before)/float64(n)*1000, "apiserver-CPU-ms/op")
			b.ReportMetric(float64(took.Microseconds())/float64(n)/1000, "ms/op")
			b.ReportMetric(0, "ns/op")
		})
	}
	var have T
	measure("update", func(n int) {
		if n == 0 {
			out, err := c.Create(ctx, version(0))
			must(err)
			have = out
			return
		}
		out, err := c.Update(ctx, merge(have, version(n)))
		must(err)
		have = out
	})
	must(c.Delete(ctx, have))
	measure("apply", func(n int) {
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(version(n))
		must(err)
		object["apiVersion"], object["kind"] = apiVersion, kind
		delete(object, "status")
		delete(object["metadata"].(map[string]any), "creationTimestamp")
		body, err := json.Marshal(object)
		must(err)
		must(plain.Patch(types.ApplyPatchType).AbsPath(path+version(n).GetName()).Param("fieldManager",
			writes.FieldManager).Param("force", "true").Body(body).Do(ctx).Error())
	})
}

package broker

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/testkit"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestPreview checks that the broker's preview of a RemoteCluster matches what happens when it is applied and its
// exporter connects. A preview changes nothing.
func TestPreview(t *testing.T) {
	r := worldOfObjects(t)
	r.cfg.Brake = config.Brake{Percent: 50, AtLeast: 1, Hold: config.Duration{Duration: time.Hour}}
	stop := r.start(r.cfg)
	r.create("c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	r.shows("c2", "Accepted, not Connected (NeverConnected), Healthy, port 7775")
	e2 := r.exporter("c2")
	sendAll(e2, "e1", serviceObject("shop", "echo", 80), sliceObject("shop", "echo-1", "echo", "10.2.1.5"))
	const ofC2 = `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
service c2-shop-73736d-echo: 80
slice of c2-shop-73736d-echo: 10.2.1.5`
	r.becomes("the first remote", ofC2)
	// A Service of another owner has the name of a future mirror.
	if _, err := r.admin.CoreV1().Services("semaphore").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "c3-shop-73736d-taken"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	client := r.debugger(t)
	preview := func(what, want, object string, exports ...*semaphorev1.PreviewExports) {
		t.Helper()
		answer, err := client.Preview(t.Context(), &semaphorev1.PreviewRequest{Objects: []string{object}, Exports: exports})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		var lines []string
		for _, c := range answer.GetChanges() {
			lines = append(lines, strings.Join(strings.Fields(semaphorev1.PreviewActionName(c.GetAction())+" "+
				c.GetObject()+" "+c.GetCluster()+" "+c.GetCode()), " ")+": "+c.GetText())
		}
		wanted := strings.Split(want, "\n")
		for i := range max(len(lines), len(wanted)) {
			if i >= len(lines) || i >= len(wanted) || !strings.HasPrefix(lines[i], wanted[i]) {
				t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(lines, "\n"), want)
				return
			}
		}
	}
	remote := func(name, spec string) string {
		return `{"apiVersion":"semaphore.uw.io/v1alpha1","kind":"RemoteCluster","metadata":{"name":"` + name + `"},"spec":` +
			spec + `}`
	}
	const third = `{"podSubnets":["10.3.0.0/16"],"nodeSubnets":["172.16.0.0/12"]}`
	exports := []*semaphorev1.Object{serviceObject("shop", "echo", 90), serviceObject("shop", "taken", 91),
		sliceObject("shop", "echo-1", "echo", "10.3.1.5"), sliceObject("shop", "echo-2", "echo", "10.9.1.5")}
	preview("nothing is known of it", `accept RemoteCluster c3 c3: would be in effect, encryption strict, UDP port 7776
note exports of c3 c3: not known here: give its --context, and a RemoteCluster of c1 for it, too`,
		remote("c3", third))
	preview("what it would export is known",
		`accept RemoteCluster c3 c3: would be in effect, encryption strict, UDP port 7776
note exports of c3 c3: 2 objects of kind service would be accepted
note exports of c3 c3: 2 objects of kind endpointslice would be accepted
refuse endpointslice shop/echo-2 c3 ip-outside-pod-subnets: 
create service semaphore/c3-shop-73736d-echo: mirror of shop/echo, c3: 1 endpoints, 1 ready
clash service semaphore/c3-shop-73736d-taken NameTaken: `, remote("c3", third),
		&semaphorev1.PreviewExports{Cluster: "c3", Objects: exports})
	preview("it is in the way", `reject RemoteCluster c3 c3 SubnetsConflict: `,
		remote("c3", strings.Replace(third, "10.3.0.0/16", "10.2.0.0/24", 1)))
	preview("narrower subnets", `accept RemoteCluster c2 c2: 
note broker: it would build its engines again
note exports of c2 c2: 1 objects of kind service would be accepted
note exports of c2 c2: 1 objects of kind endpointslice would be accepted
refuse endpointslice shop/echo-1 c2 ip-outside-pod-subnets: 
note exports of c2 c2 HeldBack: 1 of 1 objects of kind endpointslice would be withdrawn: `,
		remote("c2", `{"podSubnets":["10.2.128.0/17"],"nodeSubnets":["172.16.0.0/12"]}`))
	preview("it would export nothing", `accept RemoteCluster c2 c2: 
note exports of c2 c2 HeldBack: 1 of 1 objects of kind service would be withdrawn: whatever is deleted below, the brake
note exports of c2 c2 HeldBack: 1 of 1 objects of kind endpointslice would be withdrawn: 
delete service semaphore/c2-shop-73736d-echo: `,
		remote("c2", `{"podSubnets":["10.2.0.0/16"],"nodeSubnets":["172.16.0.0/12"]}`),
		&semaphorev1.PreviewExports{Cluster: "c2"})
	r.becomes("nothing changed", ofC2)

	// It lists what it has accepted of a cluster, for the shell's completion.
	for _, test := range []struct{ cluster, namespace, name, want string }{
		{"c2", "", "", "service shop/echo"},
		{"c2", "shop", "ec", "service shop/echo"},
		{"c2", "shop", "echo-", ""},
		{"c2", "sho", "", ""},
		{"c3", "", "", ""},
	} {
		answer, err := client.Locate(t.Context(), &semaphorev1.LocateRequest{Cluster: test.cluster,
			Object: serviceObject(test.namespace, test.name).GetKey()})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range answer.GetPlaces() {
			got += p.GetObject()
		}
		if got != test.want {
			t.Errorf("accepted of %s like %s/%s: %q, want %q", test.cluster, test.namespace, test.name, got, test.want)
		}
	}

	// While many ask it, it applies a change as before, and some are refused.
	refused := r.flooded(t, func() {
		e2.send(changesFrom(101, serviceObject("shop", "echo", 81)))
		r.becomes("a change in a flood of questions", strings.Replace(ofC2, ": 80", ": 81", 1))
		e2.send(changesFrom(102, serviceObject("shop", "echo", 80)))
		r.becomes("another change in it", ofC2)
	})
	if refused == 0 {
		t.Error("no question of the flood was refused")
	}
	// A caller's cancelled question has its place until the broker hears of the cancellation.
	testkit.Eventually(t, 10*time.Second, "an answer after the flood", func() error {
		_, err := client.Locate(t.Context(), &semaphorev1.LocateRequest{Object: serviceObject("shop", "echo").GetKey()})
		return err
	})

	// It is applied, and its exporter connects.
	r.create("c3", third)
	r.shows("c3", "Accepted, not Connected (NeverConnected), Healthy, port 7776")
	e3 := r.exporter("c3")
	sendAs(e3, "c3", "e1", exports...)
	r.becomes("what the preview said", `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
pool semaphore-c3-10-3-0-0-16: 10.3.0.0/16 disabled true
service c2-shop-73736d-echo: 80
service c3-shop-73736d-echo: 90
slice of c2-shop-73736d-echo: 10.2.1.5
slice of c3-shop-73736d-echo: 10.3.1.5`)
	stop()
}

// flooded calls do while 40 callers ask the broker without a pause, with 12 questions each at a time, and watch it. It
// returns how many questions were refused.
func (w *world) flooded(t *testing.T, do func()) (refused int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	var refusals atomic.Int64
	for range 40 {
		client := w.debugger(t)
		ask := func(call func() error) {
			asking.Go(func() {
				for ctx.Err() == nil {
					switch err := call(); {
					case status.Code(err) == codes.ResourceExhausted:
						refusals.Add(1)
					case err != nil && ctx.Err() == nil:
						t.Errorf("a question of the flood: %v", err)
						return
					}
				}
			})
		}
		for range 6 {
			ask(func() error {
				_, err := client.Locate(ctx, &semaphorev1.LocateRequest{Object: serviceObject("shop", "echo").GetKey()})
				return err
			})
			ask(func() error {
				_, err := client.GetStatus(ctx, &semaphorev1.GetStatusRequest{})
				return err
			})
		}
		ask(func() error {
			stream, err := client.Watch(ctx, &semaphorev1.WatchRequest{Recent: true})
			for err == nil {
				_, err = stream.Recv()
			}
			return err
		})
	}
	do()
	cancel()
	asking.Wait()
	return refusals.Load()
}

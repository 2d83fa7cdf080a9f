package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testbed"
)

// patience is the timeout of one request of a steady client: the resolver repeats a lost DNS query after 5 s, and the
// server may wait for CPU time.
const patience = 20 * time.Second

// answer is the response of the testbed's echo program.
type answer struct {
	Pod    string `json:"pod"`
	IP     string `json:"ip"`
	Client string `json:"client"`
}

// fetch requests echo of c2 from a pod of c1 with curl, through the pod's resolver.
func (s *Scenario) fetch(ctx context.Context, pod *corev1.Pod, path string) (answer, error) {
	return s.fetchWithin(ctx, pod, path, patience)
}

func (s *Scenario) fetchWithin(ctx context.Context, pod *corev1.Pod, path string, within time.Duration) (answer,
	error) {
	return s.fetchURL(ctx, pod, s.echoURL+path, within)
}

func (s *Scenario) fetchURL(ctx context.Context, pod *corev1.Pod, url string, within time.Duration) (answer, error) {
	out, err := s.c1.ExecPod(ctx, pod.Namespace, pod.Name, "curl", "-sS", "--max-time", fmt.Sprint(within.Seconds()), url)
	if err != nil {
		return answer{}, fmt.Errorf("curl %s in pod %s of c1: %w", url, pod.Name, err)
	}
	var a answer
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		return answer{}, fmt.Errorf("curl %s in pod %s of c1 answered %q: %w", url, pod.Name, out, err)
	}
	return a, nil
}

// fetchUntil retries fetch until it succeeds, because changes take time to reach the other cluster.
func (s *Scenario) fetchUntil(ctx context.Context, pod *corev1.Pod, path string, within time.Duration) (a answer,
	took time.Duration, err error) {
	started := time.Now()
	err = until(ctx, within, func() error {
		var err error
		a, err = s.fetch(ctx, pod, path)
		return err
	})
	return a, time.Since(started), err
}

// refusal is the time without an answer after which a request counts as dropped, on a machine that answers an admitted
// pod in a third of it.
const refusal = time.Second

// refused returns nil if the pod gets no answer within a time in which an admitted one does, which asks before and
// after. It returns an error at once if the pod gets an answer.
func (s *Scenario) refused(ctx context.Context, pod, admitted *corev1.Pod) error {
	ask := func() (time.Duration, error) {
		began := time.Now()
		if _, err := s.fetch(ctx, admitted, "/"); err != nil {
			return 0, fmt.Errorf("the admitted pod %s (%s): %w", admitted.Name, admitted.Status.PodIP, err)
		}
		return time.Since(began), nil
	}
	for {
		before, err := ask()
		if err != nil {
			return err
		}
		within := max(refusal, 3*before)
		a, err := s.fetchWithin(ctx, pod, "/", within)
		if err == nil {
			return fmt.Errorf("pod %s (%s) of c1 got an answer of pod %s", pod.Name, pod.Status.PodIP, a.Pod)
		}
		if !strings.Contains(err.Error(), "timed out") && !strings.Contains(err.Error(), "Connection timeout") {
			return fmt.Errorf("pod %s of c1 was refused for another reason than policy: %w", pod.Name, err)
		}
		if after, err := ask(); err != nil || after <= within {
			return err
		}
		// The machine became slower meanwhile: the pod's answer may only have been late.
	}
}

// until retries f until it returns nil or the time is over, and then returns f's last error.
func until(ctx context.Context, within time.Duration, f func() error) error {
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %w", within, err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// pod returns the only pod with a label that is not being deleted.
func pod(ctx context.Context, c *testbed.Cluster, namespace, selector string) (*corev1.Pod, error) {
	all, err := pods(ctx, c, namespace, selector)
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("%s: %d pods have %s in %s, not one", c.Name, len(all), selector, namespace)
	}
	return &all[0], nil
}

// leader returns the broker or exporter pod that holds the Lease. It must be ready.
func leader(ctx context.Context, c *testbed.Cluster, part string) (*corev1.Pod, error) {
	lease, err := c.Client.CoordinationV1().Leases(Namespace).Get(ctx, "semaphore-"+part+"-leader", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return nil, fmt.Errorf("%s: no %s leads", c.Name, part)
	}
	all, err := Part(ctx, c, part)
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	for _, p := range all {
		for _, condition := range p.Status.Conditions {
			if p.Name == name && condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return &p, nil
			}
		}
	}
	return nil, fmt.Errorf("%s: the %s that leads, %s, is not ready or gone", c.Name, part, name)
}

// awaitLeader waits for the leader. A leader that cannot renew its Lease in time, because its apiserver gets no CPU
// time, is replaced by another.
func awaitLeader(ctx context.Context, c *testbed.Cluster, part string) (p *corev1.Pod, err error) {
	err = until(ctx, settle, func() (err error) {
		p, err = leader(ctx, c, part)
		return err
	})
	return p, err
}

// CallsReachLeader returns nil if the broker's Services have exactly one endpoint, the leading broker.
func CallsReachLeader(ctx context.Context, c *testbed.Cluster) error {
	p, err := leader(ctx, c, "broker")
	if err != nil {
		return err
	}
	for _, service := range []string{"semaphore-broker", "semaphore-broker-federation"} {
		all, err := c.Client.DiscoveryV1().EndpointSlices(Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=" + service,
		})
		if err != nil {
			return err
		}
		var addresses []string
		for _, s := range all.Items {
			for _, e := range s.Endpoints {
				addresses = append(addresses, e.Addresses...)
			}
		}
		if len(addresses) != 1 || addresses[0] != p.Status.PodIP {
			return fmt.Errorf("the Service %s leads to %v, the leader %s has %s", service, addresses, p.Name, p.Status.PodIP)
		}
	}
	return nil
}

// exporterIsCutOff waits until the exporter of a cluster reports that it is not connected to the broker of another.
func (s *Scenario) exporterIsCutOff(ctx context.Context, c *testbed.Cluster, broker string) error {
	want := fmt.Sprintf("semaphore_exporter_connected{cluster=%q} 0", broker)
	return until(ctx, settle, func() error { // an interrupted stream ends after 15 s
		p, err := leader(ctx, c, "exporter")
		if err != nil {
			return err
		}
		metrics, err := c.Node(p.Spec.NodeName).Exec(ctx, "curl", "-sS", "--max-time", "2",
			"http://"+p.Status.PodIP+":8080/metrics")
		if err == nil && !strings.Contains(metrics, want) {
			err = fmt.Errorf("%s: the exporter does not say %s", c.Name, want)
		}
		return err
	})
}

// Part returns the pods of a part of semaphore.
func Part(ctx context.Context, c *testbed.Cluster, part string) ([]corev1.Pod, error) {
	return pods(ctx, c, Namespace, "app.kubernetes.io/name=semaphore,app.kubernetes.io/component="+part)
}

// pods returns the pods with an address that are not being deleted.
func pods(ctx context.Context, c *testbed.Cluster, namespace, selector string) ([]corev1.Pod, error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("%s: pods of %s: %w", c.Name, namespace, err)
	}
	var out []corev1.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil && p.Status.PodIP != "" {
			out = append(out, p)
		}
	}
	return out, nil
}

// traffic is a steady stream of requests from one pod.
type traffic struct {
	stop func() tally

	mu sync.Mutex
	tally
}

// tally is the result of a stream of requests.
type tally struct {
	answered int
	failed   []string
	byPod    map[string]int
	last     map[string]time.Time // when a pod that answered was last asked
}

// asking requests a URL again and again, each time on a new connection. For each request it prints a line: when it
// asked, in seconds since the machine started, curl's exit code, and what curl printed. It is one process of the pod:
// to start one for each request takes ten times as long as the request.
const asking = `while read -r asked _ < /proc/uptime; do
said=$(curl -sS --max-time "$2" "$1" 2>&1)
printf '%s %s %s\n' "$asked" "$?" "$said"
sleep 0.05
done`

// startTraffic sends requests from a pod continuously, each on a new connection.
func (s *Scenario) startTraffic(ctx context.Context, pod *corev1.Pod, url string) (*traffic, error) {
	from, err := s.c1.Pod(ctx, pod.Namespace, pod.Name)
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	t := &traffic{}
	t.byPod, t.last = map[string]int{}, map[string]time.Time{}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		err := from.ExecTo(ctx, write, "sh", "-c", asking, "sh", url, fmt.Sprint(patience.Seconds()))
		write.Close()
		if ctx.Err() == nil {
			t.add("", "", fmt.Sprintf("the requests ended early: %v", err))
		}
	})
	running.Go(func() {
		for lines := bufio.NewScanner(read); lines.Scan(); {
			asked, rest, _ := strings.Cut(lines.Text(), " ")
			code, said, _ := strings.Cut(rest, " ")
			t.add(asked, code, said)
		}
	})
	t.stop = func() tally {
		cancel()
		read.Close()
		running.Wait()
		return t.tally
	}
	return t, nil
}

// add counts a line of asking.
func (t *traffic) add(asked, code, said string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var a answer
	var since unix.Timespec
	up, err := strconv.ParseFloat(asked, 64)
	if err == nil {
		err = unix.ClockGettime(unix.CLOCK_BOOTTIME, &since)
	}
	if code != "0" || err != nil || json.Unmarshal([]byte(said), &a) != nil {
		t.failed = append(t.failed, strings.TrimSpace(asked+" "+code+" "+said))
		return
	}
	t.answered++
	t.byPod[a.Pod]++
	t.last[a.Pod] = time.Now().Add(time.Duration(up*1e9) - time.Duration(since.Nano()))
}

// globalHas returns nil once a global service has this number of endpoints in c1: then its broker knows what both
// clusters have.
func (s *Scenario) globalHas(ctx context.Context, service string, want int) error {
	all, err := s.c1.Client.DiscoveryV1().EndpointSlices(Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + naming.Global("shop", service)})
	if err != nil {
		return err
	}
	n := 0
	for _, slice := range all.Items {
		n += len(slice.Endpoints)
	}
	if n != want {
		return fmt.Errorf("the global service %s has %d endpoints, not %d", service, n, want)
	}
	return nil
}

// lent returns nil if slices with endpoints of other clusters are beside a Service of c1, or if none are, as wanted;
// service "" is for all Services.
func (s *Scenario) lent(ctx context.Context, service string, want bool) error {
	all, err := s.slicesOf(ctx, service, true)
	if err == nil && len(all) > 0 != want {
		err = fmt.Errorf("the slices under the own name of %q are %q", service, all)
	}
	return err
}

// slicesOf returns the slices of a Service of c1, those under own names or all others, as NAME UID VERSION; service ""
// is for all Services.
func (s *Scenario) slicesOf(ctx context.Context, service string, own bool) ([]string, error) {
	selector := "!" + naming.LabelOwnName
	if own {
		selector = naming.LabelOwnName
	}
	if service != "" {
		selector += "," + discoveryv1.LabelServiceName + "=" + service
	}
	all, err := s.c1.Client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	out := []string{}
	for _, slice := range all.Items {
		out = append(out, fmt.Sprint(slice.Name, " ", slice.UID, " ", slice.ResourceVersion))
	}
	slices.Sort(out)
	return out, nil
}

// seen returns the number of answers from a pod so far.
func (t *traffic) seen(pod string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byPod[pod]
}

// all returns the number of answers so far.
func (t *traffic) all() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answered
}

func (t tally) err() error {
	if len(t.failed) > 0 {
		return fmt.Errorf("%d of %d requests failed; the first: %s", len(t.failed), len(t.failed)+t.answered, t.failed[0])
	}
	if t.answered == 0 {
		return errors.New("not one request was made")
	}
	return nil
}

// count returns how often marker occurs in the captured packets.
func count(packets [][]byte, marker string) int {
	n := 0
	for _, p := range packets {
		n += bytes.Count(p, []byte(marker))
	}
	return n
}

package status

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

func TestSets(t *testing.T) {
	var asked *semaphorev1.ListSetsRequest
	sets := []*semaphorev1.PolicySet{ctltest.WebSet()}
	socket := ctltest.BrokerWith(t, func(req *semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		asked = req
		return sets, nil
	})
	out, code, err := ctltest.Run(t, "get", "sets", "c2/shop/web", "--socket", socket, "--ip", "10.2.0.5")
	if code != 0 || err != nil {
		t.Errorf("exit code %d: %v", code, err)
	}
	if asked.Cluster != "c2" || asked.Namespace != "shop" || asked.Name != "web" || asked.Address != "10.2.0.5" {
		t.Errorf("asked for %v", asked)
	}
	has := func(out string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
	}
	has(out, "SET PODS ADDRESSES AGE IN STATE", "c2/shop/web 2 2 ",
		"GlobalNetworkSet c2-shop-web as wanted NetworkSet shop/c2-shop-web")
	out, _, _ = ctltest.Run(t, "get", "sets", "--socket", socket, "--pods")
	has(out, "POD ADDRESSES UID", "c2/shop/web-2 10.2.0.6 fd02::6 u2")

	odd := ctltest.WebSet()
	odd.Missing, odd.Leftover, odd.Connected = []string{"10.2.0.6"},
		[]string{"10.2.0.7", "10.2.0.8", "10.2.0.9", "10.2.0.10"}, false
	odd.Name = "we\x1bb"
	sets = append(sets, odd)
	out, code, err = ctltest.Run(t, "get", "sets", "--socket", socket)
	if code != show.ExitWrong || err == nil ||
		!strings.Contains(err.Error(), "1 of 2 sets are not as wanted: c2/shop/we b") {
		t.Errorf("exit code %d: %v", code, err)
	}
	has(out, "1 not there yet (10.2.0.6); 4 to go (10.2.0.7, 10.2.0.8, 10.2.0.9, …); c2 is not connected")
	if strings.Contains(out, "\x1b") || strings.Contains(err.Error(), "\x1b") {
		t.Error("a remote's name commands the terminal")
	}
	sets = nil
	if out, code, err := ctltest.Run(t, "get", "sets", "--socket", socket); code != 0 || err != nil ||
		!strings.HasPrefix(out, "no such set: ") {
		t.Errorf("without sets: %q, %d, %v", out, code, err)
	}
}

// TestBigSets: a set that is too large for one message arrives completely.
func TestBigSets(t *testing.T) {
	const pods = 60_000
	big := ctltest.WebSet()
	big.Pods = nil
	for i := range pods {
		big.Pods = append(big.Pods, &semaphorev1.SetPod{Name: fmt.Sprintf("web-7d9f8b6c5d-%05d", i),
			Uid: fmt.Sprintf("%036d", i), Ips: []string{fmt.Sprintf("10.2.%d.%d", i/250, i%250)}})
	}
	other := ctltest.WebSet()
	other.Name = "zoo"
	socket := ctltest.BrokerWith(t, func(*semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		copied := ctltest.WebSet()
		copied.Pods = slices.Clone(big.Pods)
		return []*semaphorev1.PolicySet{copied, other}, nil
	})
	found, err := fleet.AskSets(t.Context(), &fleet.Target{Access: &fleet.Access{}, Sockets: []string{socket}},
		&semaphorev1.ListSetsRequest{}, time.Minute)
	must(t, err)
	if len(found.Sets) != 2 || len(found.Sets[0].Pods) != pods || len(found.Sets[1].Pods) != 2 ||
		found.Sets[0].Pods[pods-1].Name != big.Pods[pods-1].Name {
		t.Errorf("%d sets, of which the first has %d pods", len(found.Sets), len(found.Sets[0].Pods))
	}
}

func TestSetsWrongUse(t *testing.T) {
	standby := ctltest.BrokerWith(t, func(*semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		return nil, grpcstatus.Error(codes.FailedPrecondition, "standby: b leads: ask the leader")
	})
	without := ctltest.BrokerWith(t, nil)
	for _, test := range []struct{ args, want string }{
		{"get sets c2/shop/web/x --socket " + standby, "CLUSTER/NAMESPACE/NAME"},
		{"get sets c2//web --socket " + standby, "CLUSTER/NAMESPACE/NAME"},
		{"get sets -o wide --socket " + standby, "table, json or yaml"},
		{"get sets --socket " + standby, "ask the leader"},
		{"get sets --socket " + without, "none of the parts asked is a broker with the policy feature"},
		{"get sets --address 192.0.2.1:1 --part exporter --cluster c1", "only a broker has sets"},
		{"explain --from 10.2.0.5 --to db --socket " + standby, "--to \"db\": use NAMESPACE/POD"},
		{"explain --from web --to default/db --socket " + standby, "--from \"web\": use CLUSTER/NAMESPACE/POD"},
		{"explain --from c2/shop/web --to default/db --port http --socket " + standby, "--port \"http\""},
		{"explain --from c2/shop/web --to default/db --port 80/ICMP --socket " + standby, "--port \"80/ICMP\""},
		{"explain --from c2/shop/web", "give FROM and TO, or --from and --to"},
	} {
		if _, code, err := ctltest.Run(t, strings.Fields(test.args)...); code != 1 || err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %d, %v, want %q", test.args, code, err, test.want)
		}
	}
}

// TestSetsEscape: hostile text of a remote reaches no terminal unchanged in a document of sets.
func TestSetsEscape(t *testing.T) {
	const evil = "a\u009b2J\x1b[2J\nb\u202ec"
	sets := &fleet.BrokerSets{Cluster: "c1", Sets: []*semaphorev1.PolicySet{{Cluster: "c2", Name: evil}}}
	for _, format := range []string{"json", "yaml"} {
		var b bytes.Buffer
		must(t, printSetsAs(&b, sets, format))
		for _, r := range b.String() {
			if !unicode.IsPrint(r) && r != '\n' {
				t.Errorf("%s: %q has %U", format, b.String(), r)
			}
		}
	}
}

package preflight

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
)

// TestClockOfAnAPIServer: a clock that cannot be read is named as such, and not taken for one that is right.
func TestClockOfAnAPIServer(t *testing.T) {
	for name, test := range map[string]struct {
		date string
		want string
	}{
		"right":     {time.Now().UTC().Format(http.TimeFormat), "0s"},
		"ahead":     {time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), "1h0m0s"},
		"behind":    {time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), "-1h0m0s"},
		"no date":   {"", `not known, the apiserver's clock: its answer has the date ""`},
		"no number": {"yesterday", `not known, the apiserver's clock: its answer has the date "yesterday"`},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Date"] = []string{test.date}
				fmt.Fprint(w, `{"gitVersion": "v1.34.1"}`)
			}))
			defer server.Close()
			s := &surveyor{Objects: &fleet.Objects{Config: &rest.Config{Host: server.URL}}, out: &Cluster{Context: "c1"}}
			must(t, s.versionAndClock(t.Context()))
			got := "not known"
			for _, u := range s.out.Unread {
				got += ", " + u.Why
			}
			if s.out.Clock != nil {
				got = s.out.Clock.Round(time.Minute).String()
			}
			if got != test.want || s.out.Version != "v1.34.1" {
				t.Errorf("version %s, clock %s; want %s", s.out.Version, got, test.want)
			}
		})
	}
}

// TestNoGuessOfPodSubnets: kubeadm's or the nodes' subnets are those of the pods where a better source has none, and
// not where it could not be read.
func TestNoGuessOfPodSubnets(t *testing.T) {
	for _, x := range []struct {
		kubeadm string
		unread  Fact
		want    string
	}{
		{"10.9.0.0/16", "", "10.9.0.0/16"}, {"", "", "10.1.0.0/24"}, {"10.9.0.0/16", FactCoreDNS, "10.9.0.0/16"},
		{"10.9.0.0/16", FactCalico, ""}, {"10.9.0.0/16", FactPods, ""}, {"", FactPods, ""},
	} {
		s := &surveyor{kubeadm: &kubeadm{}, out: &Cluster{Nodes: []Node{{PodCIDRs: prefixes("10.1.0.0/24").Prefixes}}}}
		s.kubeadm.Networking.PodSubnet = x.kubeadm
		if x.unread != "" {
			s.unread(x.unread, errors.New("429"))
		}
		if s.readPodSubnets(); s.out.Pods.String() != x.want {
			t.Errorf("kubeadm has %q, and %q is not known: pods %q, want %q", x.kubeadm, x.unread, s.out.Pods, x.want)
		}
	}
}

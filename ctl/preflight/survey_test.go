package preflight

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
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
			got := "not known, " + strings.Join(s.out.Unread, ", ")
			if s.out.Clock != nil {
				got = s.out.Clock.Round(time.Minute).String()
			}
			if got != test.want || s.out.Version != "v1.34.1" {
				t.Errorf("version %s, clock %s; want %s", s.out.Version, got, test.want)
			}
		})
	}
}

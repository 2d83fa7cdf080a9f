package status

import (
	"bytes"
	"context"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestIP asks a broker for the holders of an IP.
func TestIP(t *testing.T) {
	since := time.Now().Add(-time.Hour)
	socket := ctltest.ServeAnswers(t, debug.NewRecorder("broker", "c1", ""), ctltest.Well, debug.Answers{
		Holders: func(_ context.Context, req *semaphorev1.ListHoldersRequest) (*semaphorev1.ListHoldersResponse, error) {
			out := &semaphorev1.ListHoldersResponse{Since: timestamppb.New(since)}
			if req.GetAddress() == "10.2.0.5" {
				out.Holders = []*semaphorev1.Holder{{Cluster: "c2", Namespace: "shop", Pod: "web", Uid: "u1", Set: "web"}}
			}
			return out, nil
		}})
	out, code, err := ctltest.Run(t, "get", "ip", "10.2.0.5", "--socket", socket)
	if code != 0 || !strings.Contains(out, "c2/shop/web") || !strings.Contains(out, "before") {
		t.Errorf("code %d, %v:\n%s", code, err, out)
	}
	if _, code, err = ctltest.Run(t, "get", "ip", "10.2.0.6", "--socket", socket); code != 1 {
		t.Errorf("nobody: code %d, %v", code, err)
	}
	for _, args := range []string{"get ip x", "get ip", "get ip 10.2.0.5 -o xml"} {
		if _, code, err := ctltest.Run(t, append(strings.Fields(args), "--socket", socket)...); code != 1 || err == nil {
			t.Errorf("%s: code %d, %v", args, code, err)
		}
	}
}

// TestNewestFirst: also of several brokers.
func TestNewestFirst(t *testing.T) {
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	broker := func(cluster string, until *timestamppb.Timestamp) string {
		return ctltest.ServeAnswers(t, debug.NewRecorder("broker", cluster, ""), ctltest.Well, debug.Answers{
			Holders: func(context.Context, *semaphorev1.ListHoldersRequest) (*semaphorev1.ListHoldersResponse, error) {
				return &semaphorev1.ListHoldersResponse{Since: timestamppb.New(at.Add(-time.Hour)),
					Holders: []*semaphorev1.Holder{{Cluster: "c9", Pod: "known-to-" + cluster, Until: until}}}, nil
			}})
	}
	args := []string{"get", "ip", "10.2.0.5"}
	for cluster, until := range map[string]*timestamppb.Timestamp{"c1": timestamppb.New(at),
		"c2": timestamppb.New(at.Add(time.Minute)), "c3": nil} {
		args = append(args, "--socket", broker(cluster, until))
	}
	out, _, err := ctltest.Run(t, args...)
	must(t, err)
	if !regexp.MustCompile(`(?s)known-to-c3.*known-to-c2.*known-to-c1`).MatchString(out) {
		t.Error(out)
	}
}

func TestPrintHeld(t *testing.T) {
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	end := at.Add(time.Minute)
	var out bytes.Buffer
	must(t, printHeld(&out, netip.MustParseAddr("10.2.0.5"), []held{
		{By: "c1", Cluster: "c2", Namespace: "shop", Pod: "db-0", UID: "u2", Set: "db", From: end},
		{By: "c1", Cluster: "c2", Namespace: "shop", Pod: "web\x1b[2J", UID: "u1", Set: "web", From: at, Until: end},
		{By: "c1", Cluster: "c2", Namespace: "shop", Pod: "old", UID: "u0", Set: "web", Until: at},
	}, at.Add(-time.Hour), "table"))
	ctltest.Golden(t, "ip", out.String())
}

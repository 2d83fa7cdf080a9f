package status

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func aBroker(links ...*semaphorev1.LinkStatus) *semaphorev1.GetStatusResponse {
	return &semaphorev1.GetStatusResponse{Part: "broker", Cluster: "c1", Ready: true, Now: timestamppb.New(noon),
		StartedAt: before(time.Hour), Links: links}
}

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(-d)) }

// TestTrafficTable: the status of a broker has a line for each Service with traffic, in the broker's order, and the
// number of those that it leaves out. A name cannot control the terminal.
func TestTrafficTable(t *testing.T) {
	s := aBroker()
	s.ServiceTraffic = []*semaphorev1.ServiceTrafficStatus{
		{Namespace: "semaphore", Service: "c2-shop-73736d-echo", SentBytes: 999, ReceivedBytes: 12_345_678,
			Connections: 42, SentPerSecond: 1_500, ReceivedPerSecond: 2_000_000_000, Nodes: 3},
		{Namespace: "semaphore", Service: "c2-\x1b[2J", Nodes: 1},
	}
	s.ServiceTrafficTotal = 7
	var out bytes.Buffer
	must(t, statusTable(&out, s))
	_, table, found := strings.Cut(out.String(), "TRAFFIC OF SERVICE")
	table, _, _ = strings.Cut(table, "\n\n")
	var lines []string
	for line := range strings.Lines(table) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	if want := []string{"OUT/S IN/S OUT IN CONNECTIONS NODES",
		"semaphore/c2-shop-73736d-echo 1.5 kB 2.0 GB 999 B 12 MB 42 3"}; !found || len(lines) < 4 ||
		!slices.Equal(lines[:2], want) || lines[3] != "and 5 more" || strings.Contains(lines[2], "\x1b") {
		t.Errorf("the table is %q", lines)
	}
}

// TestKindLines: a broker's status has a line for each kind of each remote, with its age, the refused objects, and the
// lag, and the counts of the Multi-Cluster Services API.
func TestKindLines(t *testing.T) {
	l := &semaphorev1.LinkStatus{
		Cluster: "c2", Connected: true, Since: before(time.Hour), LastHeard: before(3 * time.Second),
		Kinds: []*semaphorev1.KindStatus{
			{Kind: semaphorev1.Kind_KIND_NODE, Objects: 2, Complete: true},
			{Kind: semaphorev1.Kind_KIND_SERVICE, Objects: 7, Complete: true, LastHeard: before(3 * time.Second),
				Limit: 10_000},
		}}
	service := l.Kinds[1]
	service.Refused, service.Retained, service.RetainedSince = 3, 4, before(5*time.Minute)
	service.LastPropagation = durationpb.New(12 * time.Millisecond)
	service.MedianPropagation = durationpb.New(-2 * time.Millisecond)
	service.HighPropagation = durationpb.New(2340 * time.Millisecond)
	s := aBroker(l)
	s.Leader = "broker-0"
	s.MultiCluster = multiCluster(5, 1, "c1", 2, "c2", 4)
	var out bytes.Buffer
	must(t, statusTable(&out, s))
	words := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		", leader (broker-0)",
		"CLUSTER KIND AGE OBJECTS REFUSED HELD BACK LAG: LAST MEDIAN HIGH",
		"c2 node never 2 0 0 - - -",
		"c2 service 3s 7/10000 3 4 for 5m0s 12ms -2ms 2.3s",
		"IMPORTS CONFLICTS EXPORTS 5 1 c1 2, c2 4",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("the status has no %q:\n%s", want, &out)
		}
	}
	s.Part = "exporter"
	out.Reset()
	must(t, statusTable(&out, s))
	if strings.Contains(out.String(), "LAG") {
		t.Errorf("an exporter has ages:\n%s", &out)
	}
}

package debug

import (
	"fmt"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/proto"
)

// TestPlacesAreBounded: whatever other clusters name their objects, and however many there are, an answer has at most
// maxPlaces places of one printable line each, and counts the rest.
func TestPlacesAreBounded(t *testing.T) {
	hostile := "\x1b[2J\u202e\n" + strings.Repeat("x", 1<<16) + "\xff"
	out := &Places{}
	for i := range 100_000 {
		out.Add(Place{Hop: HopPlan, Object: fmt.Sprintf("service %d%s", i, hostile[:i%100]), State: PlaceDone})
	}
	out.Add(Place{Hop: HopPlan})
	if len(out.Places) != maxPlaces || int(out.More) != 100_001-maxPlaces {
		t.Errorf("%d places and %d more", len(out.Places), out.More)
	}
	out = &Places{}
	for range maxPlaces {
		out.Add(Place{Hop: HopAccept, Object: "service " + hostile, Cluster: hostile, Detail: hostile, State: PlaceFailed})
	}
	for _, p := range out.Places[:1] {
		for _, text := range []string{p.GetObject(), p.GetCluster(), p.GetDetail()} {
			if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("a text is not printable: %q", text)
			}
		}
	}
	// semaphorectl accepts 4 MiB, the default of gRPC.
	if size := proto.Size(&out.LocateResponse); size > 4<<20 {
		t.Errorf("an answer has %d bytes", size)
	}
}

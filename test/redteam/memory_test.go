package redteam

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// field returns a length-delimited protobuf field.
func field(n protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), content)
}

// amplifiers returns messages of nearly size bytes. Each would be many times as large once decoded.
func amplifiers(size int) map[string][]byte {
	fill := func(element []byte) []byte { return bytes.Repeat(element, (size-64)/len(element)) }
	changes := func(content []byte) []byte { return field(3, content) }
	object := func(spec []byte) []byte {
		key := field(1, []byte{8, 3, 18, 1, 'a', 26, 1, 'b'})
		return changes(field(1, field(3, append(key, spec...))))
	}
	return map[string][]byte{
		"empty changes":               changes(fill([]byte{10, 0})),
		"changes with an object each": changes(fill([]byte{10, 4, 26, 2, 10, 0})),
		"sources":                     changes(fill([]byte{18, 0})),
		"endpoints":                   object(field(4, fill([]byte{34, 0}))),
		"endpoints with an address":   object(field(4, fill([]byte{34, 2, 10, 0}))),
		"ports":                       object(field(4, fill([]byte{26, 0}))),
		"addresses":                   object(field(4, field(4, fill([]byte{10, 0})))),
		"pod CIDRs":                   object(field(2, fill([]byte{10, 0}))),
		"kinds":                       field(1, field(8, fill([]byte{1}))),
		"features":                    field(1, fill([]byte{58, 0})),
		"unknown fields":              changes(field(1, fill([]byte{240, 127, 1}))),
		"many messages in one":        fill([]byte{10, 0, 26, 0}),
		"heartbeat sources":           field(5, fill([]byte{34, 0})),
	}
}

// TestDecodedSize checks that the broker's memory grows by less than a stated figure, whatever bytes an exporter sends,
// before and after its Hello, on any number of streams, and however well they compress.
func TestDecodedSize(t *testing.T) {
	tier.OnlyAll(t, "internal/streams compares what it allows with what Go allocates")
	// With the shipped limit, each attack would wait for the rate limit of streams.
	v := start(t, limit("c2", v1alpha1.Limits{StreamsPerMinute: 100_000}))
	const most = 96 << 20
	for _, size := range []int{96 << 10, 1 << 20, 4 << 20} {
		for name, message := range amplifiers(size) {
			for _, greeted := range []bool{false, true} {
				v.costs(fmt.Sprintf("%d bytes of %s, greeted: %v", len(message), name, greeted), most, func() {
					conn := v.dial("c2", "exporter")
					defer conn.Close()
					for range 4 {
						s := testkit.Value(open(t, conn, publishMethod, ""))(t)
						if greeted {
							_ = s.call.SendMsg(encode(t, hello("c2", "e1", 0, semaphorev1.Kind_KIND_ENDPOINT_SLICE)))
							_ = s.call.SendMsg(encode(t, snapshot(semaphorev1.Kind_KIND_ENDPOINT_SLICE, 1)[0]))
						}
						sent := make(chan struct{})
						go func() {
							defer close(sent)
							for range 18 {
								if s.call.SendMsg(message) != nil {
									return
								}
							}
						}()
						select {
						case <-sent:
						case <-time.After(500 * time.Millisecond):
						}
					}
				})
			}
		}
	}
}

// TestReports checks that the broker's memory grows by less than a stated figure, whatever an admitted agent sends.
func TestReports(t *testing.T) {
	tier.OnlyAll(t, "internal/streams compares what it allows with what Go allocates")
	v := start(t)
	token := v.agentToken("n1", "192.0.2.9")
	for _, size := range []int{200 << 10, 4 << 20} {
		fill := func(element []byte) []byte { return bytes.Repeat(element, (size-64)/len(element)) }
		for name, message := range map[string][]byte{
			"devices":      field(2, fill([]byte{10, 0})),
			"silent peers": field(2, field(1, fill([]byte{98, 0}))),
			"problems":     field(2, fill([]byte{18, 0})),
			"held":         field(1, fill([]byte{42, 0})),
			"token":        field(4, field(1, bytes.Repeat([]byte{'x'}, size-64))),
		} {
			v.costs(fmt.Sprintf("%d bytes of %s on 16 streams", len(message), name), 64<<20, func() {
				for range 16 {
					conn := v.dialPeering()
					defer conn.Close()
					s := testkit.Value(open(t, conn, attachMethod, token))(t)
					go func() {
						for range 8 {
							if s.call.SendMsg(message) != nil {
								return
							}
						}
					}()
				}
				time.Sleep(700 * time.Millisecond)
			})
		}
	}
}

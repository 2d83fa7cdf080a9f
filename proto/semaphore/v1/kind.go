// Package semaphorev1 has the messages and services that cross between the parts of semaphore. docs/protocol.md says in
// which order they come, and the .proto files what each field means. The files *.pb.go are generated (make generate).
//
// It imports nothing of ours.
package semaphorev1

import "fmt"

// KindName is the word for a kind in metrics, events and status, the same at both ends of a stream.
func KindName(k Kind) string {
	switch k {
	case Kind_KIND_NODE:
		return "node"
	case Kind_KIND_SERVICE:
		return "service"
	case Kind_KIND_ENDPOINT_SLICE:
		return "endpointslice"
	case Kind_KIND_SET_MEMBER:
		return "setmember"
	}
	return fmt.Sprintf("kind%d", k)
}

// Package semaphorev1 has the messages and services that cross between the parts of semaphore. docs/protocol.md says in
// which order they come, and the .proto files what each field means. The files *.pb.go are generated (make generate).
package semaphorev1

import (
	"fmt"
	"slices"
	"strings"
)

// Kinds are the kinds of objects that exist, in the order of their numbers.
var Kinds = []Kind{Kind_KIND_NODE, Kind_KIND_SERVICE, Kind_KIND_ENDPOINT_SLICE, Kind_KIND_SET_MEMBER}

// KindName is the word for a kind in metrics, events and printed status, the same at both ends of a stream.
func KindName(k Kind) string {
	if !slices.Contains(Kinds, k) {
		return fmt.Sprintf("kind%d", k)
	}
	return strings.ReplaceAll(word(k.String(), "KIND_"), "_", "")
}

// KindOf is the kind of a name that KindName returns.
func KindOf(name string) (k Kind, ok bool) {
	i := slices.IndexFunc(Kinds, func(k Kind) bool { return KindName(k) == name })
	if i < 0 {
		return Kind_KIND_UNSPECIFIED, false
	}
	return Kinds[i], true
}

// BackendName is the word for a backend in status and configuration; empty for none.
func BackendName(b Backend) string { return known(int32(b), Backend_name, "BACKEND_") }

// StateSourceName is the word for where a desired state comes from, in printed status; empty for nowhere.
func StateSourceName(s StateSource) string { return known(int32(s), StateSource_name, "STATE_SOURCE_") }

// PlaceStateName is the word for how an object is at a hop; empty for unknown.
func PlaceStateName(s PlaceState) string { return known(int32(s), PlaceState_name, "PLACE_STATE_") }

// WhenGoneName is the word for a WhenGone in annotations and configuration; empty for unset, and for one that this
// version does not know.
func WhenGoneName(w WhenGone) string { return known(int32(w), WhenGone_name, "WHEN_GONE_") }

// WhenGoneOf is the WhenGone of a word that WhenGoneName returns; unspecified for any other.
func WhenGoneOf(name string) WhenGone {
	return WhenGone(WhenGone_value["WHEN_GONE_"+strings.ToUpper(name)])
}

// BackendOf is the backend of a word that BackendName returns; unspecified for any other.
func BackendOf(name string) Backend { return Backend(Backend_value["BACKEND_"+strings.ToUpper(name)]) }

// LevelName is the word for a level in metrics and printed status; "error" for unspecified, and for one that this
// version does not know.
func LevelName(l Level) string {
	if name := known(int32(l), Level_name, "LEVEL_"); name != "" {
		return name
	}
	return LevelName(Level_LEVEL_ERROR)
}

// LevelOf is the level of a word that LevelName returns; unspecified for any other.
func LevelOf(name string) Level { return Level(Level_value["LEVEL_"+strings.ToUpper(name)]) }

// SideName is the word for a side in printed status, such as "this-cluster"; empty for unspecified, and for one that
// this version does not know.
func SideName(s Side) string {
	return strings.ReplaceAll(known(int32(s), Side_name, "SIDE_"), "_", "-")
}

// SideOf is the side of a word that SideName returns; unspecified for any other.
func SideOf(name string) Side {
	return Side(Side_value["SIDE_"+strings.ReplaceAll(strings.ToUpper(name), "-", "_")])
}

// SessionStateOf is the state of a session's word, as in metrics; unspecified for any other.
func SessionStateOf(name string) SessionState {
	return SessionState(SessionState_value["SESSION_STATE_"+strings.ToUpper(name)])
}

// known is the word for a number of an enum; empty for 0 and for numbers without a name.
func known(number int32, names map[int32]string, prefix string) string {
	if number == 0 {
		return ""
	}
	return word(names[number], prefix)
}

// word is the name of an enum's value without the enum's own, in lower case.
func word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

package semaphorev1

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// Time returns a time for a message: none for one that is zero, or that WireGuard gives for never (1970).
func Time(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() || t.Unix() == 0 {
		return nil
	}
	return timestamppb.New(t)
}

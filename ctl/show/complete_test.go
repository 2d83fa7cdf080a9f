package show

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestCompletionIsInTime: a completion takes 2 s at most, even if something answers neither the request nor its end.
func TestCompletionIsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		silent := make(chan struct{})
		if found := inTime(t.Context(), func(context.Context, string) []string {
			<-silent
			return []string{"c2"}
		}, ""); len(found) > 0 || time.Since(began) > 2*time.Second {
			t.Errorf("%v after %s", found, time.Since(began))
		}
		close(silent)
	})
}

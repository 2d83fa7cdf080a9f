package conns

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestAttemptsOfASourceWait: of the attempts of one source as many run as may fail, and the others wait. Each that
// succeeds lets another one in, also beside those that give up; after as many as may fail all are refused.
func TestAttemptsOfASourceWait(t *testing.T) {
	const burst, all, impatient = 3, 90, 30
	for name, fail := range map[string]bool{"succeed": false, "fail": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := NewFailures(burst, time.Hour, 10)
				var running, admitted, refused, ended atomic.Int64
				var wg sync.WaitGroup
				for i := range all {
					patience := time.Minute
					if i%3 == 2 {
						patience = time.Second // when others end
					}
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					wg.Go(func() {
						defer cancel()
						end, err := f.Acquire(ctx, "10.0.0.1")
						switch {
						case errors.Is(err, ErrTooOften):
							refused.Add(1)
						case err != nil:
							ended.Add(1)
						default:
							if now := running.Add(1); now > burst {
								t.Errorf("%d attempts run", now)
							}
							admitted.Add(1)
							time.Sleep(time.Second)
							running.Add(-1)
							end(fail)
						}
					})
				}
				wg.Wait()
				switch in, out, left := admitted.Load(), refused.Load(), ended.Load(); {
				case in+out+left != all || left > impatient:
					t.Errorf("of %d attempts %d were admitted, %d refused, and %d gave up", all, in, out, left)
				case !fail && out > 0:
					t.Errorf("%d attempts were refused, and none had failed", out)
				case fail && in != burst:
					t.Errorf("%d attempts were admitted, and %d may fail", in, burst)
				}
			})
		})
	}
}

package exporter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/mcs"
)

// removeConditions removes the conditions of ServiceExports that the exporter wrote while the feature was on. Without
// the rights of the component features/mcs they remain, which is the usual case if the feature was never on.
func (e *exporter) removeConditions(ctx context.Context) error {
	client, err := mcs.New(e.rest, mcs.Exporter)
	if err != nil {
		return err
	}
	problem := kube.NewProblem(slog.Default())
	for {
		err := removeOwnConditions(ctx, client)
		if err == nil || apierrors.IsForbidden(err) {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		problem.Set(fmt.Sprintf("conditions of ServiceExports remain, although mcs is off: %v", err))
		if err := kube.Sleep(ctx, 30*time.Second); err != nil {
			return err
		}
	}
}

func removeOwnConditions(ctx context.Context, client *mcs.Client) error {
	exports, err := client.WithOwnConditions(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, x := range exports {
		if err := client.RemoveOwnConditions(ctx, &x); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	if len(exports) > 0 && len(errs) == 0 {
		slog.Info("removed the conditions of ServiceExports, as mcs is off", "exports", len(exports))
	}
	return errors.Join(errs...)
}

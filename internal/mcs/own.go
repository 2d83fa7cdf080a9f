package mcs

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/kube"
)

// Exporter is the field manager of the exporter's writes, by which its conditions are recognised.
const Exporter = "semaphore-exporter"

// WithOwnConditions returns the ServiceExports that have conditions of the exporter; none if the API is not served.
// Those that cannot be read keep their conditions. It fails if the list does.
func (c *Client) WithOwnConditions(ctx context.Context) (all []mcsv1beta1.ServiceExport, err error) {
	list, err := c.Exports().Follow("", &kube.Unread{}).ListWithContextFunc(ctx, metav1.ListOptions{})
	if errors.Is(err, ErrNotServed) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range list.(*mcsv1beta1.ServiceExportList).Items {
		if len(foreignConditions(&e)) < len(e.Status.Conditions) {
			all = append(all, e)
		}
	}
	return all, nil
}

// RemoveOwnConditions removes the exporter's conditions of a ServiceExport, and keeps those of others. After a conflict
// it tries again; it fails if a condition of others cannot be read.
func (c *Client) RemoveOwnConditions(ctx context.Context, e *mcsv1beta1.ServiceExport) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		// A list lacks conditions that cannot be read; with those of others in it, this is an error of Get.
		next, err := c.Exports().Get(ctx, e.Namespace, e.Name)
		if err != nil {
			return err
		}
		next.Status.Conditions = foreignConditions(next)
		_, err = c.Exports().UpdateStatus(ctx, next)
		return err
	})
}

// foreignConditions returns those that the exporter does not own: the last writer of a condition's reason owns it.
func foreignConditions(e *mcsv1beta1.ServiceExport) []metav1.Condition {
	own := map[string]bool{}
	for _, m := range e.ManagedFields {
		if m.Manager != Exporter || m.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Status struct {
				Conditions map[string]map[string]any `json:"f:conditions"`
			} `json:"f:status"`
		}
		if json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		for key, has := range fields.Status.Conditions {
			var of struct{ Type string }
			if _, reason := has["f:reason"]; !reason || len(key) < 2 || json.Unmarshal([]byte(key[2:]), &of) != nil {
				continue
			}
			own[of.Type] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(e.Status.Conditions), func(c metav1.Condition) bool { return own[c.Type] })
}

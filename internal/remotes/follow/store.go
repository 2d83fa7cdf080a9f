package follow

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

// storeKey is the key of the ConfigMap with the objects, JSON.
const storeKey = "remotes.json"

// Store stores the objects in effect in a ConfigMap. An object with a bundle of one certificate has about 1.5 KiB, and
// an apiserver accepts 1 MiB.
type Store struct {
	api     corev1client.ConfigMapInterface
	name    string
	problem *kube.Problem

	mu    sync.Mutex
	saved []byte
}

// NewStore returns the store in a ConfigMap.
func NewStore(client kubernetes.Interface, namespace, name string, log *slog.Logger) *Store {
	return &Store{api: client.CoreV1().ConfigMaps(namespace), name: name, problem: kube.NewProblem(log)}
}

// Load reads the stored objects. It waits until the apiserver answers; if the part has no right to the ConfigMap, it
// returns none.
func (s *Store) Load(ctx context.Context) (remotes.Objects, error) {
	for {
		object, err := s.api.Get(ctx, s.name, metav1.GetOptions{})
		switch {
		case err == nil:
			kept := remotes.Objects{}
			if text := object.Data[storeKey]; text != "" {
				if kept, err = remotes.ReadObjects(text); err != nil {
					s.problem.Set(fmt.Sprintf("RemoteClusters that were in effect are not known: ConfigMap %s, %s: %v", s.name,
						storeKey, err))
					return remotes.Objects{}, nil
				}
				s.saved = []byte(text)
			}
			s.problem.Set("")
			return kept, nil
		case apierrors.IsNotFound(err):
			return remotes.Objects{}, nil
		}
		s.problem.Set(fmt.Sprintf("RemoteClusters that were in effect are not known: ConfigMap %s: %v", s.name, err))
		if apierrors.IsForbidden(err) {
			return remotes.Objects{}, nil
		}
		if err := kube.Sleep(ctx, again); err != nil {
			return nil, err
		}
	}
}

// Save writes what is in effect, if it changed.
func (s *Store) Save(ctx context.Context, inEffect remotes.Objects) error {
	text, err := json.Marshal(inEffect)
	if err != nil {
		return err
	}
	s.mu.Lock()
	same := bytes.Equal(text, s.saved)
	s.mu.Unlock()
	if same {
		return nil
	}
	if err := write(ctx, s.api, s.name, storeKey, string(text)); err != nil {
		s.problem.Set(fmt.Sprintf("RemoteClusters that are in effect are not stored for a restart: ConfigMap %s: %v",
			s.name, err))
		return err
	}
	s.mu.Lock()
	s.saved = text
	s.mu.Unlock()
	s.problem.Set("")
	return nil
}

// write makes a text the content of a ConfigMap. It carries the version that it read, so that a replica that was
// suspended meanwhile does not overwrite what the next leader wrote.
func write(ctx context.Context, api corev1client.ConfigMapInterface, name, key, text string) error {
	labels, data := map[string]string{naming.LabelManagedBy: "semaphore"}, map[string]string{key: text}
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		object, err := api.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Data: data},
				metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		metav1.SetMetaDataLabel(&object.ObjectMeta, naming.LabelManagedBy, "semaphore")
		object.Data, object.BinaryData = data, nil
		_, err = api.Update(ctx, object, metav1.UpdateOptions{})
		return err
	})
}

// Problems returns why nothing is stored, a line.
func (s *Store) Problems() []string { return s.problem.Lines() }

package follow

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

const managedBy = "semaphore"

// Store stores the objects in effect in a ConfigMap. An object with a bundle of one certificate has about 1.5 KiB, and
// an apiserver accepts 1 MiB.
type Store struct {
	config  *leader.Kept
	problem *kube.Problem
	log     *slog.Logger
}

func NewStore(client kubernetes.Interface, namespace, name string, log *slog.Logger) *Store {
	kept := leader.NewKept(client, namespace, name, managedBy, log)
	return &Store{config: kept, problem: kube.NewProblem(log), log: log}
}

// Load reads the stored objects. It waits until the apiserver gives them, also without the right to the ConfigMap: with
// none, what was in effect would end. It leaves out an object that cannot be read. It fails only if ctx ends.
func (s *Store) Load(ctx context.Context) (remotes.Objects, error) {
	object, err := earlier(ctx, s.config, func(err error) {
		s.problem.Set(fmt.Sprintf("RemoteClusters that were in effect are not known: %v", err))
	})
	objects, problem := remotes.Objects{}, ""
	if err != nil {
		return objects, err
	}
	if object != nil && object.Data[remotes.StoredKey] != "" {
		if objects, err = remotes.ReadObjects(object.Data[remotes.StoredKey]); err != nil {
			problem = fmt.Sprintf("RemoteClusters that were in effect are not known: ConfigMap %s, %s: %v", object.Name,
				remotes.StoredKey, err)
		} else {
			s.config.Holds(object.Data[remotes.StoredKey])
		}
	}
	s.problem.Set(problem)
	return objects, nil
}

// earlier reads what an earlier process kept; nil for nothing. It calls failed after each attempt that fails, a refused
// one too, and tries again. It fails only if ctx ends.
func earlier(ctx context.Context, kept *leader.Kept, failed func(error)) (object *corev1.ConfigMap, err error) {
	for {
		if object, err = kept.Get(ctx); err == nil {
			return object, nil
		}
		failed(err)
		if err := kube.Sleep(ctx, again); err != nil {
			return nil, err
		}
	}
}

// Save stores the objects in effect, and restores them if another writer has changed them. It fails, and sets a
// problem, if it cannot.
func (s *Store) Save(ctx context.Context, inEffect remotes.Objects) error {
	text, err := json.Marshal(inEffect)
	if err != nil {
		return err
	}
	if err := s.config.Hold(ctx, remotes.StoredKey, string(text)); err != nil {
		s.problem.Set(fmt.Sprintf("RemoteClusters that are in effect are not stored for a restart: %v", err))
		return err
	}
	s.problem.Set("")
	return nil
}

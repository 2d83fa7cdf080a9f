package leader

// This file writes the ConfigMaps in which a part stores what its next process, or another part, needs. Only that part
// may change them: another's change or deletion is found within a minute, undone, and reported.
//
// A Kept is one ConfigMap. Its caller decides the content.

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

const (
	// Every is the interval at which a ConfigMap is read again.
	Every = time.Minute
	// reportedFor is how long a restored ConfigMap is reported: longer than an alert waits.
	reportedFor = time.Hour
	// tries bounds how often a change begins again because another writer writes at the same moment.
	tries = 5
)

// Kept is a ConfigMap that one part writes. It is safe for concurrent use.
type Kept struct {
	api         corev1client.ConfigMapInterface
	name, owner string
	log         *slog.Logger
	// Every is the interval at which the ConfigMap is read again. Tests shorten it.
	Every time.Duration

	mu sync.Mutex
	// text is what Hold wrote last, and wrote that it did.
	text  string
	wrote bool
	// looked is when the ConfigMap was last read or written.
	looked time.Time
	// report describes the last restored text, at restored.
	report   string
	restored time.Time
}

// NewKept returns the Kept of a name. owner is the value of its label managed-by.
func NewKept(client kubernetes.Interface, namespace, name, owner string, log *slog.Logger) *Kept {
	return &Kept{api: client.CoreV1().ConfigMaps(namespace), name: name, owner: owner, log: log, Every: Every}
}

// Get reads the ConfigMap; nil if there is none. It fails if the request does.
func (m *Kept) Get(ctx context.Context) (*corev1.ConfigMap, error) {
	object, err := m.api.Get(ctx, m.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		object = nil
	case err != nil:
		return nil, m.named(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looked = time.Now()
	return object, nil
}

func (m *Kept) named(err error) error { return fmt.Errorf("ConfigMap %s: %w", m.name, err) }

// Hold makes a text the only content of the ConfigMap, under a key. It sends nothing if it wrote the same text, and has
// looked since Every. It fails as Change does.
func (m *Kept) Hold(ctx context.Context, key, text string) error {
	m.mu.Lock()
	same, due := m.wrote && m.text == text, time.Since(m.looked) >= m.Every
	m.mu.Unlock()
	if same && !due {
		return nil
	}
	changed, err := m.Change(ctx, func(object *corev1.ConfigMap) {
		object.Data, object.BinaryData = map[string]string{key: text}, nil
	})
	if err != nil {
		return err
	}
	if same && changed {
		m.Restored("what it holds")
	}
	m.Holds(text)
	return nil
}

// Holds tells Hold the content of the ConfigMap at the start of the part.
func (m *Kept) Holds(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.text, m.wrote = text, true
}

// Change reads the ConfigMap, changes it with do, and creates or updates it if that makes a difference. If another
// writer comes between, it begins again, so do may run several times. It fails if that happens each time, or a request
// fails.
func (m *Kept) Change(ctx context.Context, do func(*corev1.ConfigMap)) (changed bool, err error) {
	for range tries {
		changed, err = m.change(ctx, do)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			break
		}
	}
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.looked = time.Time{} // what it read is still to be changed
	}
	return changed, err
}

func (m *Kept) change(ctx context.Context, do func(*corev1.ConfigMap)) (bool, error) {
	have, err := m.Get(ctx)
	if err != nil {
		return false, err
	}
	want := have.DeepCopy()
	if have == nil {
		want = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
	}
	metav1.SetMetaDataLabel(&want.ObjectMeta, naming.LabelManagedBy, m.owner)
	do(want)
	switch {
	case have == nil && len(want.Data)+len(want.BinaryData) == 0, have != nil && sameContent(have, want):
		return false, nil
	case have == nil:
		_, err = m.api.Create(ctx, want, metav1.CreateOptions{})
	default:
		// It has the version that was read: another's write in between is not lost unseen.
		_, err = m.api.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return false, m.named(err)
	}
	return true, nil
}

func sameContent(a, b *corev1.ConfigMap) bool {
	return maps.Equal(a.Data, b.Data) && maps.Equal(a.Labels, b.Labels) &&
		maps.EqualFunc(a.BinaryData, b.BinaryData, bytes.Equal)
}

// Restored reports that another writer had changed or deleted a part of the ConfigMap, and that it is restored.
func (m *Kept) Restored(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.restored = time.Now()
	m.report = fmt.Sprintf("somebody changed or deleted %s in the ConfigMap %s, and it was restored at %s", what, m.name,
		m.restored.UTC().Format(time.RFC3339))
	m.log.Warn("somebody changed or deleted a ConfigMap of this part, which restored it", "configmap", m.name,
		"what", what)
}

// Reports returns what was restored lately, a line.
func (m *Kept) Reports() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.report == "" || time.Since(m.restored) > reportedFor {
		return nil
	}
	return []string{m.report}
}

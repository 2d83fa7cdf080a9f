package stored

// DNS keeps semaphore's server blocks in CoreDNS's configuration current, so that names of remote Services resolve for
// the remotes that are in effect.
//
// It owns the text of these blocks, in the place where semaphorectl put them first: the marked section of the Corefile,
// or the file of their own that the Corefile imports. It never adds them to a CoreDNS where semaphorectl did not, never
// removes all of them, and never touches another byte (docs/services.md). If another writer removed them, it restores
// them where it may, and reports it where it may only read. internal/coredns decides the text. CoreDNS reads the change
// by its plugin reload, which the blocks have.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

const (
	// namespace is CoreDNS's. corefile is the ConfigMap with the Corefile, and imported the one with the files that it
	// imports, as in K3s and AKS.
	namespace, corefile, imported = "kube-system", "coredns", "coredns-custom"
	// checkInterval is how often the blocks are compared while the remotes remain as they are.
	checkInterval = time.Minute
	// reloadDelay is how long to wait for more changes before the blocks are written. CoreDNS reloads for each write.
	reloadDelay = 2 * time.Second
)

type DNS struct {
	maps            corev1client.ConfigMapInterface
	marks           corev1client.ConfigMapInterface
	mirrorNamespace string
	// manages is set if the keeper may write; otherwise it only reads, and reports lost blocks.
	manages bool
	imports bool
	log     *slog.Logger
	problem *kube.Problem
	changed chan struct{}

	mu      sync.Mutex
	remotes []coredns.Remote
	lost    bool
}

// NewDNS returns the keeper of the blocks for the remotes of a configuration. Without manageCoreDNS it writes nothing.
func NewDNS(client kubernetes.Interface, cfg *config.Broker, log *slog.Logger) *DNS {
	k := &DNS{
		maps: client.CoreV1().ConfigMaps(namespace), marks: client.CoreV1().ConfigMaps(cfg.MirrorNamespace),
		mirrorNamespace: cfg.MirrorNamespace, manages: cfg.ManageCoreDNS, imports: cfg.MCS.Enabled,
		log: log, problem: kube.NewProblem(log), changed: make(chan struct{}, 1),
	}
	k.Follow(cfg.Remotes)
	return k
}

func (k *DNS) Follow(remotes []config.Remote) {
	var named []coredns.Remote
	for _, r := range remotes {
		named = append(named, coredns.Remote{Cluster: r.Name, Prefix: r.ServicePrefix})
	}
	// The order of semaphorectl, which lists objects by name.
	slices.SortFunc(named, func(a, b coredns.Remote) int { return cmp.Compare(a.Cluster, b.Cluster) })
	k.mu.Lock()
	k.remotes = named
	k.mu.Unlock()
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

func (k *DNS) Findings() []finding.Finding {
	k.mu.Lock()
	code := finding.CoreDNSNotCurrent
	if k.lost {
		code = finding.CoreDNSLost
	}
	k.mu.Unlock()
	return finding.Line(code, "", k.problem.Text())
}

// Run keeps the blocks current until ctx ends, whose error it returns: a failed write is a problem, and is tried again.
func (k *DNS) Run(ctx context.Context) error {
	timer := time.NewTimer(checkInterval)
	defer timer.Stop()
	for {
		text := ""
		// semaphorectl or another writer may change the ConfigMap at the same moment.
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error { return k.keep(ctx) })
		if err != nil && ctx.Err() == nil {
			text = "server blocks of CoreDNS: " + err.Error()
		}
		k.mu.Lock()
		k.lost = errors.Is(err, errLost)
		k.mu.Unlock()
		k.problem.Set(text)
		timer.Reset(checkInterval)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-k.changed:
			if err := kube.Sleep(ctx, reloadDelay); err != nil {
				return err
			}
		}
	}
}

// keep compares the blocks with the remotes, and writes a difference. Without the right to write it only
// reports blocks that semaphorectl added and that are gone.
func (k *DNS) keep(ctx context.Context) error {
	added, unknown := k.added(ctx)
	if !k.manages && !added {
		return unknown
	}
	missing := errNotWired
	switch {
	case added:
		missing = errLost
	case unknown != nil:
		missing = unknown
	}
	main, err := k.maps.Get(ctx, corefile, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("ConfigMap %s/%s: %w", namespace, corefile, err)
	}
	text := main.Data["Corefile"]
	pattern, imports := coredns.Import(text)
	has, found := coredns.Section(text)
	switch {
	case found && !k.manages:
		return nil
	case found || added && k.manages && !imports: // there, or to be restored
		blocks, err := k.blocks(text, has, coredns.WithSection(text, ""))
		if err != nil {
			return err
		}
		return k.write(ctx, main, "Corefile", coredns.WithSection(text, blocks))
	}
	if !imports {
		return missing
	}
	custom, err := k.maps.Get(ctx, imported, metav1.GetOptions{})
	if apierrors.IsNotFound(err) { // RBAC knows no right to create an object of that name alone
		return missing
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s/%s: %w", namespace, imported, err)
	}
	file := coredns.FileOf(pattern)
	has, found = custom.Data[file]
	switch {
	case found && !k.manages:
		return nil
	case !found && !(added && k.manages):
		return missing
	}
	blocks, err := k.blocks(text, has, append(coredns.Others(custom.Data, pattern), text)...)
	if err != nil {
		return err
	}
	return k.write(ctx, custom, file, blocks)
}

// added reports whether semaphorectl says that it added blocks.
func (k *DNS) added(ctx context.Context) (bool, error) {
	_, err := k.marks.Get(ctx, naming.ConfigMapDNS, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ConfigMap %s/%s, which says whether there should be any: %w", k.mirrorNamespace,
			naming.ConfigMapDNS, err)
	}
	return true, nil
}

var (
	errNotWired = errors.New("there are none yet, and only semaphorectl adds them: semaphorectl install --dns")
	errLost     = errors.New("somebody removed them: no name of a remote Service resolves; semaphorectl link --dns adds " +
		"them again, and after semaphorectl install --dns the broker does")
)

// blocks returns the current blocks. has are the existing ones, and outside the blocks of others.
func (k *DNS) blocks(corefile, has string, outside ...string) (string, error) {
	domain := coredns.ClusterDomain(corefile)
	if e := validation.IsDNS1123Subdomain(domain); len(e) > 0 {
		return "", fmt.Errorf("the Corefile has the cluster's domain as %q: %s", domain, e[0])
	}
	k.mu.Lock()
	all := coredns.Of(k.remotes, k.mirrorNamespace, domain, k.imports)
	k.mu.Unlock()
	text, left := coredns.Text(all, coredns.KnowsImportsBy(has), outside...)
	if len(text) > maxBytes {
		return "", fmt.Errorf("they have %d bytes, and at most %d fit into a ConfigMap", len(text), maxBytes)
	}
	if text == "" { // which would remove the place where they belong
		return "", errors.New(strings.Join(left, "; "))
	}
	return text, nil
}

// write writes a text under a key of a ConfigMap, unless it is there or another writer has changed the ConfigMap
// meanwhile.
func (k *DNS) write(ctx context.Context, object *corev1.ConfigMap, key, text string) error {
	if was, there := object.Data[key]; there && was == text {
		return nil
	}
	if object.Data == nil {
		object.Data = map[string]string{}
	}
	object.Data[key] = text
	_, err := k.maps.Update(ctx, object, metav1.UpdateOptions{FieldManager: naming.ManagedByBroker})
	if err != nil {
		return fmt.Errorf("ConfigMap %s/%s: %w", namespace, object.Name, err)
	}
	k.log.Info("wrote the server blocks of CoreDNS", "configmap", object.Name, "key", key)
	return nil
}

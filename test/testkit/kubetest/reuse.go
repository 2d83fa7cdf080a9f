package kubetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Reusing wraps the tests of a package, for goleak.VerifyTestMain: Start then gives an apiserver to one test after the
// other, because a start costs more than most tests. Between two tests its store becomes what it was after the start.
// The servers stop when all tests have run.
//
// A server is not given to another test after a failed test, nor after one that changed what the apiserver keeps in
// memory; see follows.
func Reusing(m interface{ Run() int }) interface{ Run() int } {
	idle.reuse = true
	return reusing{m}
}

type reusing struct{ tests interface{ Run() int } }

func (r reusing) Run() int {
	defer func() {
		for _, s := range idle.servers {
			s.life.end()
		}
	}()
	return r.tests.Run()
}

// idle has the servers that no test uses.
var idle struct {
	reuse   bool
	mu      sync.Mutex // guards servers
	servers []*server
}

// server is an apiserver that outlives a test.
type server struct {
	cfg   *rest.Config
	store *Store
	life  *lasting
	// fresh is the content of etcd after the start, by key.
	fresh map[string][]byte
}

// reused returns a server that another test has used, or a new one.
func reused(t testing.TB) *server {
	t.Helper()
	s := takeIdle()
	if s == nil {
		s = &server{life: &lasting{TB: t}}
		s.cfg, s.store = startWith(s.life, defaultRange)
		var err error
		if s.fresh, err = s.settled(t.Context()); err != nil {
			s.life.end()
			t.Fatalf("what a new apiserver stores: %v", err)
		}
	}
	t.Cleanup(func() { s.giveBack(t) })
	return s
}

func takeIdle() *server {
	idle.mu.Lock()
	defer idle.mu.Unlock()
	if len(idle.servers) == 0 {
		return nil
	}
	s := idle.servers[0]
	idle.servers = idle.servers[1:]
	return s
}

func (s *server) giveBack(t testing.TB) {
	if t.Failed() {
		t.Logf("etcd wrote at last:\n%s\nkube-apiserver wrote at last:\n%s", s.store.etcd.Tail(), s.store.apiserver.Tail())
		s.life.end()
		return
	}
	// The context of the test has ended.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.reset(ctx); err != nil {
		t.Logf("no other test uses this apiserver: %v", err)
		s.life.end()
		return
	}
	idle.mu.Lock()
	defer idle.mu.Unlock()
	idle.servers = append(idle.servers, s)
}

// lasting is a testing.TB for servers that outlive the test: their files and processes remain until end.
type lasting struct {
	testing.TB
	cleanups []func()
}

func (l *lasting) TempDir() string {
	dir, err := os.MkdirTemp("", "kubetest")
	if err != nil {
		l.Fatalf("directory of an apiserver: %v", err)
	}
	l.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (l *lasting) Cleanup(f func()) { l.cleanups = append(l.cleanups, f) }

// Failed is for the cleanup of a process. giveBack logs what it wrote.
func (l *lasting) Failed() bool { return false }

// Errorf is for the cleanup of a process, when there may be no test any more.
func (l *lasting) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (l *lasting) end() {
	for _, f := range slices.Backward(l.cleanups) {
		f()
	}
}

const registry = "/registry/"

// later is what the apiserver creates after it has become ready. Its repair allocates the address of the Service
// kubernetes if it comes first.
var later = []string{
	"namespaces/default", "namespaces/kube-system", "namespaces/kube-public", "namespaces/kube-node-lease",
	"services/specs/default/kubernetes", "servicecidrs/kubernetes", "ipaddresses/10.96.0.1", "ranges/servicenodeports",
	"configmaps/kube-system/extension-apiserver-authentication",
	"configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking",
}

// own are the resources of objects that the apiserver itself changes at any time.
var own = []string{"leases/kube-system", "peerserverleases", "masterleases", "flowschemas",
	"prioritylevelconfigurations", services}

// follows are the resources which the apiserver's admission keeps in memory, some of them for half a minute.
var follows = []string{"resourcequotas", "limitranges", "validatingwebhookconfigurations",
	"mutatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings",
	"mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "priorityclasses", "runtimeclasses",
	"storageclasses", "servicecidrs"}

const (
	definitions = "apiextensions.k8s.io/customresourcedefinitions"
	services    = "apiregistration.k8s.io/apiservices"
	// managed labels the APIServices of definitions, which the apiserver itself creates and removes.
	managed = "kube-aggregator.kubernetes.io/automanaged"
)

func isOf(key string, resources ...string) bool {
	return slices.ContainsFunc(resources, func(r string) bool { return strings.HasPrefix(key, registry+r+"/") })
}

// settled returns the content of etcd once it has all that a new apiserver creates.
func (s *server) settled(ctx context.Context) (content map[string][]byte, err error) {
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true,
		func(ctx context.Context) (bool, error) {
			content, err = s.store.content(ctx, registry)
			return err == nil && !slices.ContainsFunc(later, func(key string) bool { return content[registry+key] == nil }), err
		})
	return content, err
}

// reset makes the store what it was after the start, and returns when the apiserver has seen that.
func (s *server) reset(ctx context.Context) error {
	now, err := s.store.content(ctx, registry)
	if err != nil {
		return err
	}
	restore, remove := map[string][]byte{}, []string{}
	for key, value := range s.fresh {
		if !bytes.Equal(now[key], value) && !isOf(key, own...) {
			restore[key] = value
		}
	}
	var defined []apiextensions.CustomResourceDefinition
	for key, value := range now {
		if _, ok := s.fresh[key]; ok {
			continue
		}
		switch {
		case isOf(key, services) && !bytes.Contains(value, []byte(managed)):
			return fmt.Errorf("the test created %s", key)
		case isOf(key, own...):
			continue
		case isOf(key, definitions):
			var crd apiextensions.CustomResourceDefinition
			if err := json.Unmarshal(value, &crd); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			defined = append(defined, crd)
		}
		remove = append(remove, key)
	}
	for _, key := range slices.AppendSeq(slices.Clone(remove), maps.Keys(restore)) {
		if isOf(key, follows...) {
			return fmt.Errorf("the test changed %s", key)
		}
	}
	if err := s.store.write(ctx, restore, remove); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(s.cfg)
	if err != nil {
		return err
	}
	return errors.Join(s.undefined(ctx, client, defined), Authorizes(ctx, client))
}

// undefined returns when the apiserver no longer serves the types that were defined, and has no APIService that it had
// not after its start.
func (s *server) undefined(ctx context.Context, client kubernetes.Interface,
	defined []apiextensions.CustomResourceDefinition) error {
	var left string
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 10*time.Second, true,
		func(ctx context.Context) (bool, error) {
			now, err := s.store.content(ctx, registry+services+"/")
			if err != nil {
				return false, err
			}
			for key := range now {
				if _, ok := s.fresh[key]; !ok {
					left = key
					return false, nil
				}
			}
			if len(defined) == 0 {
				return true, nil
			}
			groups, err := client.Discovery().ServerGroups()
			if err != nil {
				return false, err
			}
			for _, crd := range defined {
				if slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == crd.Spec.Group }) {
					left = crd.Spec.Group
					return false, nil
				}
				for _, v := range crd.Spec.Versions {
					left = path.Join("/apis", crd.Spec.Group, v.Name, crd.Spec.Names.Plural)
					err := client.Discovery().RESTClient().Get().AbsPath(left).Do(ctx).Error()
					if !apierrors.IsNotFound(err) {
						return false, nil
					}
				}
			}
			return true, nil
		})
	if err != nil {
		return fmt.Errorf("%s is left: %w", left, err)
	}
	return nil
}

// Authorizes returns when the apiserver's authorizer has seen the last change of all roles and bindings: it grants what
// a role and a binding of each kind permit that are created now, under a name that none had before. They are removed
// then.
func Authorizes(ctx context.Context, client kubernetes.Interface) error {
	marker := "kubetest-" + strings.ToLower(rand.Text())
	meta := metav1.ObjectMeta{Name: marker}
	rules := func(resource string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{APIGroups: []string{marker}, Resources: []string{resource}, Verbs: []string{"get"}}}
	}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: marker}}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: marker}
	}
	rbac, opts := client.RbacV1(), metav1.CreateOptions{}
	for _, create := range []func() error{
		func() error {
			_, err := rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules("everywhere")}, opts)
			return err
		},
		func() error {
			_, err := rbac.ClusterRoleBindings().Create(ctx,
				&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref("ClusterRole")}, opts)
			return err
		},
		func() error {
			_, err := rbac.Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules("here")}, opts)
			return err
		},
		func() error {
			_, err := rbac.RoleBindings("default").Create(ctx,
				&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref("Role")}, opts)
			return err
		},
	} {
		if err := create(); err != nil {
			return err
		}
	}
	err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		for _, resource := range []string{"everywhere", "here"} {
			request := &authorizationv1.SubjectAccessReview{}
			request.Spec.User = marker
			request.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
				Namespace: "default", Group: marker, Resource: resource, Verb: "get",
			}
			review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, request, opts)
			if err != nil || !review.Status.Allowed {
				return false, err
			}
		}
		return true, nil
	})
	gone := metav1.DeleteOptions{}
	return errors.Join(err, rbac.ClusterRoleBindings().Delete(ctx, marker, gone),
		rbac.ClusterRoles().Delete(ctx, marker, gone), rbac.RoleBindings("default").Delete(ctx, marker, gone),
		rbac.Roles("default").Delete(ctx, marker, gone))
}

// content returns what etcd stores below a prefix, which ends with a slash, by key.
func (s *Store) content(ctx context.Context, prefix string) (map[string][]byte, error) {
	var answer struct{ KVs []struct{ Key, Value []byte } }
	end := append([]byte(prefix[:len(prefix)-1]), '/'+1)
	// etcd's API encodes bytes in base64, as encoding/json does.
	if err := s.ask(ctx, "range", map[string]any{"key": []byte(prefix), "range_end": end}, &answer); err != nil {
		return nil, err
	}
	content := map[string][]byte{}
	for _, kv := range answer.KVs {
		content[string(kv.Key)] = kv.Value
	}
	return content, nil
}

// write puts some keys into etcd and removes others.
func (s *Store) write(ctx context.Context, put map[string][]byte, remove []string) error {
	var operations []any
	for key, value := range put {
		operations = append(operations, map[string]any{"request_put": map[string]any{"key": []byte(key), "value": value}})
	}
	for _, key := range remove {
		operations = append(operations, map[string]any{"request_delete_range": map[string]any{"key": []byte(key)}})
	}
	// etcd allows 128 operations in a transaction.
	for some := range slices.Chunk(operations, 100) {
		if err := s.ask(ctx, "txn", map[string]any{"success": some}, &struct{}{}); err != nil {
			return err
		}
	}
	return nil
}

// ask sends a request to the gateway of etcd's API.
func (s *Store) ask(ctx context.Context, what string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v3/kv/"+what, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Close = true
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s: %s", what, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

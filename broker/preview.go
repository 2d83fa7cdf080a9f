package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// preview computes what RemoteClusters would change if they were applied: by the same decisions as those on applied
// objects, admission and quotas of a remote in a replica of its own, and a second plan of Services.
func (p *process) preview(ctx context.Context, req *semaphorev1.PreviewRequest) (*semaphorev1.PreviewResponse, error) {
	if err := p.leads(); err != nil {
		return nil, err
	}
	if err := p.working(); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if !p.previewing.TryLock() {
		return nil, status.Error(codes.ResourceExhausted, "another preview is being made")
	}
	defer p.previewing.Unlock()
	var current remotes.Objects
	f := p.following.Load()
	if f != nil {
		current, _ = f.follower.Objects()
	}
	objects, names, _, err := remotes.Propose(current, req.GetObjects(), time.Now())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if len(names) > 0 && f == nil {
		return nil, status.Error(codes.InvalidArgument, "this broker has its remotes in its file, and follows no "+
			"RemoteCluster")
	}
	v := &previewing{process: p, was: *p.cfg, now: *p.cfg, held: map[string][]replica.Result{}}
	v.was.Remotes = p.current.Load().leading.Load().Remotes
	v.now.Remotes = v.was.Remotes
	if len(names) > 0 {
		names = v.decide(f, objects, names, f.publishedPorts(ctx, current, objects))
	}
	exports := map[string][]*semaphorev1.Object{}
	for _, e := range req.GetExports() {
		exports[e.GetCluster()] = e.GetObjects()
		if !slices.Contains(names, e.GetCluster()) {
			names = append(names, e.GetCluster())
		}
	}
	for _, name := range names {
		given, have := exports[name]
		if err := v.admit(name, given, have); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "exports of %s: %v", name, err)
		}
	}
	if p.cfg.Features.Has(config.Services) {
		if err := v.services(ctx); err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
	}
	return &v.PreviewResponse, nil
}

// previewing is the state of one preview.
type previewing struct {
	debug.Changes
	process *process
	// was is the configuration in effect, and now the one that would be.
	was, now config.Broker
	// held is what would be accepted of a remote; absent for what is accepted now.
	held map[string][]replica.Result
}

// decide decides about the objects, and returns the names of those that would be in effect.
func (v *previewing) decide(f *following, objects remotes.Objects, names []string,
	ports map[string]uint16) (accepted []string) {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	d := remotes.Decide(v.process.cfg, before, objects, ports)
	for _, name := range names {
		object := "RemoteCluster " + name
		verdict := d.Verdicts[name]
		if !verdict.Accepted() {
			v.Add(debug.Reject, object, name, verdict.Reason, verdict.Message)
			continue
		}
		text := "would be in effect"
		if r, ok := d.Broker.Remote(name); ok {
			text = fmt.Sprintf("would be in effect, encryption %s", r.Encryption)
			if port := d.InEffect[name].ListenPort; port != 0 && v.process.cfg.Features.Has(config.Encryption) {
				text += fmt.Sprintf(", UDP port %d", port)
			}
		}
		v.Add(debug.Accept, object, name, "", text)
		accepted = append(accepted, name)
	}
	v.now = *d.Broker
	if !incremental(&v.was, &v.now) {
		v.Add(debug.Note, "broker", "", "",
			"it would build its engines again, and agents would attach again; traffic flows on")
	}
	return accepted
}

// admit decides what would be accepted of a remote. exports are what it would export; without them it judges what is
// accepted now.
func (v *previewing) admit(name string, exports []*semaphorev1.Object, have bool) error {
	remote, admit := v.remote(name)
	if remote == nil {
		return nil // nothing is imported from it
	}
	held, refusedNow := v.process.federation.Held(name)
	if !have {
		for _, r := range held {
			for _, c := range r.Changes {
				exports = append(exports, c.New)
			}
		}
		if len(held) == 0 {
			v.Add(debug.Note, "exports of "+name, name, "", fmt.Sprintf(
				"not known here: give its --context, and a RemoteCluster of %s for it, too", v.now.Cluster))
		} else if len(refusedNow) > 0 {
			v.Add(debug.Note, "exports of "+name, name, "", fmt.Sprintf(
				"%d objects that are refused now are not among them: give its --context, too", len(refusedNow)))
		}
	}
	r := replica.New(name, v.now.Cluster, program.Version, admit)
	r.SetLimits(remote.Limits, config.Brake{})
	results, err := r.Load(exports, time.Now())
	if err != nil {
		return err
	}
	v.held[name] = results
	for _, kind := range semaphorev1.Kinds {
		if accepted, _ := r.Count(kind); accepted > 0 {
			v.Add(debug.Note, "exports of "+name, name, "", fmt.Sprintf("%d objects of kind %s would be accepted", accepted,
				semaphorev1.KindName(kind)))
		}
	}
	for _, refused := range r.Refused() {
		v.Add(debug.Refuse, refused.Key.String(), name, refused.Code, refused.Reason)
	}
	v.brake(name, replica.Exported(held), replica.Exported(results))
	return nil
}

// remote returns the remote, or the own cluster, of a name and its admission; nil if this broker takes no exports of
// it.
func (v *previewing) remote(name string) (*config.Remote, replica.Admit) {
	if own := v.now.Own(); own != nil && own.Name == name {
		return own, admission.Own(own).Check
	}
	i := slices.IndexFunc(v.now.Remotes, func(r config.Remote) bool { return r.Name == name })
	if i < 0 {
		return nil, nil
	}
	return &v.now.Remotes[i], federation.Admission(v.now.Remotes, i, v.now.LocalPrefixes)
}

// brake reports the kinds of which the brake would retain what a remote withdraws: the plan of Services knows no brake.
func (v *previewing) brake(name string, was, now map[semaphorev1.Kind]int) {
	for _, kind := range semaphorev1.Kinds {
		if gone := was[kind] - now[kind]; v.now.Brake.Brakes(gone, was[kind]) {
			v.Add(debug.Note, "exports of "+name, name, finding.HeldBack, fmt.Sprintf("%d of %d objects of kind %s would be "+
				"withdrawn: whatever is deleted below, the brake retains them %s", gone, was[kind],
				semaphorev1.KindName(kind), v.now.Brake.Until(name)))
		}
	}
}

// plan returns the plan of Services under a configuration, with all remotes complete. It knows the existing Services,
// whose annotations hold the order in which their exports were observed.
func (v *previewing) plan(cfg *config.Broker, existing []corev1.Service, namespaces []string,
	held func(cluster string) []replica.Result) *mirror.Plan {
	names := remoteNames(cfg)
	if own := cfg.Own(); own != nil {
		names = append(names, own.Name)
	}
	plan, now := mirror.New(cfg), time.Now()
	if cfg.MCS.Enabled {
		plan.SetNamespaces(namespaces)
	}
	for i := range existing {
		if s := &existing[i]; s.Labels[naming.LabelManagedBy] == naming.ManagedByBroker {
			plan.ObserveService(s.Name, s, now)
		}
	}
	for _, name := range names {
		for _, r := range held(name) {
			plan.Apply(name, r.Changes, now)
		}
	}
	plan.Begin(now)
	for _, name := range names {
		plan.Complete(name, now)
	}
	return plan
}

// services compares the desired Services with those that would be desired.
func (v *previewing) services(ctx context.Context) error {
	heldNow := func(cluster string) []replica.Result {
		held, _ := v.process.federation.Held(cluster)
		return held
	}
	existing, err := v.process.client.CoreV1().Services(v.now.MirrorNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("the Services of %s: %w", v.now.MirrorNamespace, err)
	}
	var namespaces []string
	if v.now.MCS.Enabled {
		all, err := v.process.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("the namespaces: %w", err)
		}
		for _, n := range all.Items {
			namespaces = append(namespaces, n.Name)
		}
	}
	was := v.plan(&v.was, existing.Items, namespaces, heldNow)
	now := v.plan(&v.now, existing.Items, namespaces, func(cluster string) []replica.Result {
		if held, ok := v.held[cluster]; ok {
			return held
		}
		return heldNow(cluster)
	})
	foreign := map[string]bool{}
	for _, s := range existing.Items {
		foreign[s.Name] = s.Labels[naming.LabelManagedBy] != naming.ManagedByBroker
	}
	names, _ := was.Names()
	more, _ := now.Names()
	names = append(names, more...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		old, had := was.Service(name)
		next, wanted := now.Service(name)
		object := "service " + v.now.MirrorNamespace + "/" + name
		switch {
		case wanted && !had && foreign[name]:
			v.Add(debug.Clash, object, "", finding.NameTaken, "a Service of this name exists that is not the broker's")
		case wanted && !had:
			v.Add(debug.Create, object, "", "", v.describe(now, name))
		case had && !wanted:
			v.Add(debug.Delete, object, "", "", v.describe(was, name))
		case wanted && !apiequality.Semantic.DeepEqual(old, next):
			v.Add(debug.Changed, object, "", "", v.describe(now, name))
		}
	}
	v.imports(was, now, namespaces)
	v.Problems(debug.Clash, "", findingsOf(was.Problems()), findingsOf(now.Problems()))
	return nil
}

// imports compares the ServiceImports that are desired with those that would be. One is made when the Service that it
// leads to exists, whose IPs it has.
func (v *previewing) imports(was, now *mirror.Plan, namespaces []string) {
	names := append(was.Imports(), now.Imports()...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		old, had := was.Import(name)
		next, wanted := now.Import(name)
		object := "serviceimport " + name
		leads := "service " + v.now.MirrorNamespace + "/" + mirror.DerivedService(name) + " leads to it"
		namespace, _, _ := strings.Cut(name, "/")
		switch {
		case wanted && !had:
			v.Add(debug.Create, object, "", "", leads)
		case had && !wanted:
			v.Add(debug.Delete, object, "", "", "")
		case wanted && !apiequality.Semantic.DeepEqual(old, next):
			v.Add(debug.Changed, object, "", "", leads)
		case !wanted && !slices.Contains(namespaces, namespace) && slices.Contains(now.Imports(), name) &&
			!slices.Contains(was.Imports(), name):
			v.Add(debug.Note, object, "", "", "there is no namespace "+namespace+" here: it would be made with it")
		}
	}
}

// describe lists the Services from which a Service is made.
func (v *previewing) describe(plan *mirror.Plan, name string) string {
	all := plan.Describe(name)
	if len(all) == 0 {
		return ""
	}
	d, text := all[0], "mirror"
	switch {
	case d.Imported:
		text = "derived Service"
	case d.Global:
		text = "global service"
	}
	text += " of " + d.Namespace + "/" + d.Name
	for _, c := range d.Clusters {
		text += fmt.Sprintf(", %s: %d endpoints, %d ready", c.Cluster, c.Endpoints, c.Ready)
	}
	return text
}

// findingsOf returns a finding with a line for each problem of a plan.
func findingsOf(s *problem.Set) (found []finding.Finding) {
	for _, p := range s.All() {
		code := p.Code
		if code == "" {
			code = p.Reason
		}
		found = append(found, finding.Line(code, p.Cluster, p.Text)...)
	}
	return found
}

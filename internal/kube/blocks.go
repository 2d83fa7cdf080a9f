package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// BlockAffinity assigns a block of IPs to the node whose pods use them, as stored by Calico's IPAM. The type of
// Calico's own API does not fit: its field Deleted is a boolean, and a string in the CRD.
type BlockAffinity struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              BlockAffinitySpec `json:"spec"`
}

type BlockAffinitySpec struct {
	// State is confirmed, pending (the block does not belong to the node yet) or pendingDeletion (the node is about to
	// release it).
	State string `json:"state"`
	Node  string `json:"node"`
	CIDR  string `json:"cidr"`
	// Type is host (also if empty), or virtual for blocks of no node, such as those of load balancers.
	Type string `json:"type,omitempty"`
	// Deleted is true for an affinity that counts as absent.
	Deleted Word `json:"deleted,omitempty"`
}

// Word is a field that is a string in one version of an API and a boolean in another; "true" for both.
type Word string

// UnmarshalJSON implements json.Unmarshaler. It never fails: a value that is not a string becomes its text.
func (w *Word) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		text = string(data)
	}
	*w = Word(text)
	return nil
}

func (b *BlockAffinity) DeepCopyObject() runtime.Object {
	out := *b
	b.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

type BlockAffinityList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []BlockAffinity `json:"items"`
}

func (l *BlockAffinityList) DeepCopyObject() runtime.Object {
	out := &BlockAffinityList{TypeMeta: l.TypeMeta, Items: make([]BlockAffinity, len(l.Items))}
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*BlockAffinity)
	}
	return out
}

var (
	// ErrNoBlocks is the error if a cluster serves BlockAffinities in neither group.
	ErrNoBlocks = errors.New("the cluster serves BlockAffinities in neither projectcalico.org/v3 nor " +
		"crd.projectcalico.org/v1: is Calico installed, and does it keep its data in this cluster?")
	// ErrListFirst answers a watch that requests initial events. The Calico API server may treat it as an ordinary
	// watch, and never send the bookmark that ends the initial events. With this error, reflectors fall back to a list.
	ErrListFirst = errors.New("the Calico API server is asked for a list before a watch")
)

// BlockAffinities reads the block affinities of a cluster in the group that currently serves them: Calico may be
// installed later, or move its data to the other group.
type BlockAffinities struct {
	cfg *rest.Config

	mu     sync.Mutex
	client *CalicoClient
}

// NewBlockAffinities returns a reader. It sends no request yet.
func NewBlockAffinities(cfg *rest.Config) *BlockAffinities { return &BlockAffinities{cfg: cfg} }

// Native reports whether the resourceVersions are those of the cluster's own store. That is unknown for an aggregated
// API server.
func (b *BlockAffinities) Native() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.client != nil && b.client.GroupVersion == calicoCRD
}

// connect returns the client for the group that the cluster serves now. moved is true if it is not the same group as
// before.
func (b *BlockAffinities) connect(ctx context.Context) (client *CalicoClient, moved bool, err error) {
	gv, err := calicoGroup(ctx, b.cfg, "blockaffinities", ErrNoBlocks)
	if err != nil {
		return nil, false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	moved = b.client != nil && b.client.GroupVersion != gv
	if b.client == nil || moved {
		if client, err = CalicoIn(b.cfg, gv); err != nil {
			return nil, false, err
		}
		b.client = client
	}
	return b.client, moved, nil
}

// Follow lists and watches all block affinities. It reports those that cannot be read to unread; without it, one such
// is the error of a list.
func (b *BlockAffinities) Follow(unread *Unread) *cache.ListWatch {
	in := func(client *CalicoClient) *cache.ListWatch {
		return CalicoResource[*BlockAffinity]{client: client, resource: "blockaffinities", kind: "BlockAffinity",
			list: &BlockAffinityList{}}.Follow("", unread)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			client, moved, err := b.connect(ctx)
			if err != nil {
				return nil, err
			}
			if moved {
				options.ResourceVersion, options.ResourceVersionMatch = "", "" // they belong to the other group
			}
			return in(client).ListWithContext(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			client, moved, err := b.connect(ctx)
			if err != nil {
				return nil, err
			}
			if moved {
				return nil, apierrors.NewResourceExpired("BlockAffinities are now served by " + client.GroupVersion.String())
			}
			if options.SendInitialEvents != nil && client.GroupVersion != calicoCRD {
				return nil, ErrListFirst
			}
			return in(client).WatchWithContext(ctx, options)
		},
	}
}

// calicoGroup returns the group that serves a Calico resource. The error is unserved if none does.
func calicoGroup(ctx context.Context, cfg *rest.Config, resource string, unserved error) (gv schema.GroupVersion,
	err error) {
	disco, err := NewServed(cfg)
	if err != nil {
		return gv, err
	}
	for _, gv := range []schema.GroupVersion{calicoV3, calicoCRD} {
		resources, err := disco.Resources(ctx, gv) // a request of its own has a timeout, too
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			// An aggregated API that is down must not cause a change of the group.
			return gv, fmt.Errorf("asking whether the cluster serves %s: %w", gv, err)
		}
		for _, r := range resources {
			if r.Name == resource {
				return gv, nil
			}
		}
	}
	return schema.GroupVersion{}, unserved
}

// StrictAffinity reports whether Calico's IPAM prevents nodes from using IPs of other nodes' blocks. resource is
// kubectl's name for the type of the object "default" that has the setting. If there is no such object, resource is
// empty and strict is false. It fails if an apiserver does not answer, or refuses the read.
func StrictAffinity(ctx context.Context, cfg *rest.Config) (resource string, strict bool, err error) {
	for _, at := range []struct {
		gv       schema.GroupVersion
		resource string
	}{{calicoCRD, "ipamconfigs"}, {calicoV3, "ipamconfigurations"}} {
		client, err := CalicoIn(cfg, at.gv)
		if err != nil {
			return "", false, err
		}
		data, err := Answer(client.rest.Get().Resource(at.resource).Name("default").Do(ctx))
		if apierrors.IsNotFound(err) { // the object, or the type
			continue
		}
		if err != nil {
			return "", false, err
		}
		var object struct {
			Spec struct {
				StrictAffinity bool `json:"strictAffinity"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(data, &object); err != nil {
			return "", false, fmt.Errorf("%s default: %w", at.resource, err)
		}
		return at.resource + "." + at.gv.Group, object.Spec.StrictAffinity, nil
	}
	return "", false, nil
}

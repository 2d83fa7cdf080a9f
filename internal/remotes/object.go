package remotes

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
)

// Object is a RemoteCluster, reduced to what decisions need.
type Object struct {
	Name       string                     `json:"name"`
	UID        types.UID                  `json:"uid"`
	Created    time.Time                  `json:"created"`
	Generation int64                      `json:"generation"`
	Spec       v1alpha1.RemoteClusterSpec `json:"spec"`
	// ListenPort is the port of the object's status, 0 for none.
	ListenPort uint16 `json:"listenPort,omitempty"`
	// SourceID identifies the cluster that stands for the remote; see federation.Server.Sources. Empty for none yet.
	SourceID string                       `json:"sourceID,omitempty"`
	Status   v1alpha1.RemoteClusterStatus `json:"-"`
	// Definition is the UID of the CustomResourceDefinition under which the object was last seen.
	Definition types.UID `json:"definition,omitempty"`
}

func Of(r *v1alpha1.RemoteCluster, definition types.UID) Object {
	o := Object{
		Name: r.Name, UID: r.UID, Created: r.CreationTimestamp.UTC(), Generation: r.Generation, Spec: *r.Spec.DeepCopy(),
		Status: *r.Status.DeepCopy(), Definition: definition,
	}
	if port := r.Status.ListenPort; port > 0 && port <= math.MaxUint16 {
		o.ListenPort = uint16(port)
	}
	return o
}

func sameSpec(a, b v1alpha1.RemoteClusterSpec) bool { return apiequality.Semantic.DeepEqual(a, b) }

// Replaces reports whether an object was created for another cluster than was, which had its name and is deleted. A
// restored one has the same subnets and roots. One under another definition is judged as a change: was may be lost.
func (o Object) Replaces(was Object) bool {
	return o.UID != was.UID && o.Definition == was.Definition &&
		(o.Spec.TrustBundle != was.Spec.TrustBundle || !slices.Equal(o.Spec.PodSubnets, was.Spec.PodSubnets))
}

type Objects map[string]Object

// StoredKey is the key of the ConfigMap semaphore-PART-remotes in which a part stores its objects in effect, JSON.
const StoredKey = "remotes.json"

// ReadObjects reads objects that a part stored as JSON, for its next start. It fails if text is no JSON object, or one
// in it is invalid, and returns those that it could read.
func ReadObjects(text string) (Objects, error) {
	each := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(text), &each); err != nil {
		return Objects{}, err
	}
	all := Objects{}
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(each)) {
		var o Object
		err := json.Unmarshal(each[name], &o)
		if err == nil && o.Name != name { // it would be in effect without a RemoteCluster of its name
			err = fmt.Errorf("it has the name %.64q", o.Name)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("the object of %.64q: %w", name, err))
			continue
		}
		all[name] = o
	}
	return all, errors.Join(wrong...)
}

// ByAge returns the objects, oldest first, and by name where the age is the same.
func (o Objects) ByAge() []Object {
	return slices.SortedFunc(maps.Values(o), func(a, b Object) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
}

package remotes

import (
	"cmp"
	"encoding/json"
	"fmt"
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
	// Status as it was last seen.
	Status v1alpha1.RemoteClusterStatus `json:"-"`
	// Definition is the UID of the CustomResourceDefinition under which the object was last seen.
	Definition types.UID `json:"definition,omitempty"`
}

// Of converts a RemoteCluster to an Object.
func Of(r *v1alpha1.RemoteCluster, definition types.UID) Object {
	return Object{
		Name: r.Name, UID: r.UID, Created: r.CreationTimestamp.UTC(), Generation: r.Generation, Spec: *r.Spec.DeepCopy(),
		ListenPort: uint16(r.Status.ListenPort), Status: *r.Status.DeepCopy(), Definition: definition,
	}
}

// older orders objects by age, and by name where that is the same.
func older(a, b Object) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) }

// sameSpec reports whether two specs mean the same.
func sameSpec(a, b v1alpha1.RemoteClusterSpec) bool { return apiequality.Semantic.DeepEqual(a, b) }

// Objects by name.
type Objects map[string]Object

// ReadObjects reads objects that a part stored as JSON, for its next start.
func ReadObjects(text string) (Objects, error) {
	all := Objects{}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, err
	}
	for name, o := range all {
		if o.Name != name { // it would be in effect without a RemoteCluster of its name
			return nil, fmt.Errorf("the object of %.64q has the name %.64q", name, o.Name)
		}
	}
	if all == nil {
		all = Objects{}
	}
	return all, nil
}

// ByAge returns the objects, oldest first.
func (o Objects) ByAge() []Object {
	all := make([]Object, 0, len(o))
	for _, one := range o {
		all = append(all, one)
	}
	slices.SortFunc(all, older)
	return all
}

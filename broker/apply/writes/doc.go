// Package writes decides the broker's writes to its apiserver, and their times: it compares desired with existing
// objects, including the broker's own writes that the informer has not reported yet, and returns the next request.
//
// For each name, it owns the state of writes in flight or due: belief in own writes, contests with other writers, the
// pace of writes, budgets of remotes, conflicts. Inputs are the informer's events, the engines' answers (Desired), the
// result of each request and the time. Outputs are values: a Step, and the Write in it.
//
// It names the kinds of objects that are written, and decides which existing objects of a remote are retained.
//
// It is pure: it has no client, starts no goroutine and does not wait. Package apply drives a Machine with informers
// and clients, package sim with a store and a seed, so that the simulation tests the decisions of the product.
package writes

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

type Object interface {
	runtime.Object
	metav1.Object
}

// Owned selects the objects of any type that the broker created.
var Owned = labels.Set{naming.LabelManagedBy: naming.ManagedByBroker}.String()

// OwnedOwnSlices selects the EndpointSlices that the broker created under the own names of Services.
var OwnedOwnSlices = Owned + "," + naming.LabelOwnName

// OwnedImportSlices selects the EndpointSlices that the broker created beside ServiceImports.
var OwnedImportSlices = Owned + "," + mcsv1beta1.LabelServiceName

func Ours(object metav1.Object) bool {
	return object.GetLabels()[naming.LabelManagedBy] == naming.ManagedByBroker
}

// KeyOf returns the key of an object in an informer's store: NAMESPACE/NAME, or NAME.
func KeyOf(object metav1.Object) string {
	if ns := object.GetNamespace(); ns != "" {
		return ns + "/" + object.GetName()
	}
	return object.GetName()
}

// DeletePreconditions returns delete options with the UID and version of an object as preconditions.
func DeletePreconditions(object metav1.Object) metav1.DeleteOptions {
	uid, version := object.GetUID(), object.GetResourceVersion()
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}
}

// Kind describes how objects of one type are compared and written. Its functions do not change their arguments.
type Kind[T Object] struct {
	// Name is the name in metrics and messages.
	Name ObjectKind
	// Paced is set if writes of one object are spaced; see pace.
	Paced bool
	// Urgent, if not nil, reports whether the change from have to want must be written without pacing.
	Urgent func(have, want T) bool
	// Merge returns have with the broker's fields set as in want.
	Merge func(have, want T) T
	// Equal reports whether two objects are the same to the apiserver.
	Equal func(a, b T) bool
	// Replace, if not nil, reports whether no update can change have to want, so that the object must be deleted and
	// created.
	Replace func(have, want T) bool
	// Empty, if not nil, returns an object without its addresses. One that a finalizer keeps after its deletion is emptied
	// first.
	Empty func(have T) T
	// Recreate, if not nil, returns want with the allocations of the apiserver in an object that another writer deleted,
	// so that clients of the object find it again.
	Recreate func(gone, want T) T
}

// NotOurs is the error for an object that is not written because an object that the broker did not create has its name.
type NotOurs struct {
	// Kind and Name of the other object.
	Kind ObjectKind
	Name string
	// Hint, if not empty, is the remedy of the operator.
	Hint string
}

func (c NotOurs) Error() string {
	hint := c.Hint
	if hint == "" {
		hint = "remove or rename it, or the remote's"
	}
	return fmt.Sprintf("there is a %s %s that semaphore did not create: %s", c.Kind, c.Name, hint)
}

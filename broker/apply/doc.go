// Package apply carries out what the plans decide: it is the only part of the broker that writes
// to an apiserver.
//
// Each type of object is an instance of one loop (Objects): keyed by name, fed by marks from the plans and
// by an informer that sees nothing but what bears our labels. A write is made only when what is wanted differs
// from what is there, of the newest state, without a read before it, and under the precondition that what is
// there has not changed; an object of someone else under a name we want is left alone and told.
//
// What is wanted has three answers (Verdict): this, nothing, and not known. Not known, which is what every
// name of a remote gets before its snapshot is complete, leaves things as they are.
//
// The package decides nothing about clusters, names or contents, and knows no stream.
package apply

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Owned selects what this tool wrote, of any type.
var Owned = labels.Set{naming.LabelManagedBy: naming.ManagedByBroker}.String()

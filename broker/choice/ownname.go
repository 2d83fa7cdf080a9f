package choice

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// OwnName describes where the own name of a Service leads.
type OwnName struct {
	// Use is how its owner wants it, and Clusters are the others to which it leads now.
	Use      string
	Clusters []string
	// Ready of All endpoints of the own cluster are ready. Enough is what suffices, and Suffices is set if they do.
	Ready, All int
	Enough     string
	Suffices   bool
}

func (o OwnName) String() string {
	by, are := o.Clusters, "are"
	if o.Ready > 0 {
		by = append([]string{"this cluster"}, by...)
	} else if len(by) == 0 {
		by = []string{"no cluster"}
	}
	if o.Enough == "1" || strings.HasSuffix(o.Enough, "%") {
		are = "is"
	}
	return fmt.Sprintf("own name: %s, served by %s: %d of %d ready here, %s %s enough", o.Use, strings.Join(by, " and "),
		o.Ready, o.All, o.Enough, are)
}

// Fails reports whether the endpoints of the own cluster do not suffice, and those of no other one are used.
func (o OwnName) Fails() bool { return o.Use != "" && !o.Suffices && len(o.Clusters) == 0 }

// Lent is a change of the clusters to which the own name of a Service leads beside its own, or its end: the own cluster
// suffices again after the last one of the others had failed, too.
type Lent struct {
	Namespace, Name string
	// UID is that of the Service; empty while its exporter is silent.
	UID types.UID
	// OwnName is where it leads now, and Before are the clusters to which it led until now.
	OwnName
	Before []string
}

// Moved returns the first cluster that is in one of the lists alone.
func (l Lent) Moved() string {
	for _, lists := range [][2][]string{{l.Clusters, l.Before}, {l.Before, l.Clusters}} {
		for _, cluster := range lists[0] {
			if !slices.Contains(lists[1], cluster) {
				return cluster
			}
		}
	}
	return ""
}

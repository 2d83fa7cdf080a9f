package problem

// Duplicates counts, for one object of several clusters, the names that these give to their parts, and says which
// names a cluster shares with an earlier one.
type Duplicates struct {
	counts map[nameOf]int
	// clusters is the number of clusters that have a name.
	clusters map[string]int
	// of are the names of a cluster that an earlier cluster has, too.
	of map[string]map[string]bool
}

type nameOf struct{ name, cluster string }

// Of returns the names of a cluster that an earlier cluster has, too. The map must not be modified.
func (d *Duplicates) Of(cluster string) map[string]bool { return d.of[cluster] }

func (d *Duplicates) Has(name, cluster string) bool { return d.counts[nameOf{name, cluster}] > 0 }

// Count adds by parts of a name. It reports whether the duplicates may have changed. order are all clusters.
func (d *Duplicates) Count(name, cluster string, by int, order []string) (changed bool) {
	if d.counts == nil {
		*d = Duplicates{map[nameOf]int{}, map[string]int{}, map[string]map[string]bool{}}
	}
	of := nameOf{name, cluster}
	before := d.counts[of]
	d.counts[of] += by
	if now := before + by; now == 0 {
		delete(d.counts, of)
	} else if before != 0 {
		return false
	}
	if d.clusters[name] += by; d.clusters[name] == 0 {
		delete(d.clusters, name)
	}
	if by > 0 && d.clusters[name] < 2 || by < 0 && d.clusters[name] < 1 {
		return false // no other cluster has it
	}
	d.decide(name, order)
	return true
}

// Decide decides all names again, in another order of the clusters.
func (d *Duplicates) Decide(order []string) {
	for name := range d.clusters {
		d.decide(name, order)
	}
}

func (d *Duplicates) decide(name string, order []string) {
	one := false
	for _, cluster := range order {
		has := d.counts[nameOf{name, cluster}] > 0
		twice := d.of[cluster]
		switch {
		case has && one && twice == nil:
			d.of[cluster] = map[string]bool{name: true}
		case has && one:
			twice[name] = true
		default:
			if delete(twice, name); len(twice) == 0 {
				delete(d.of, cluster)
			}
		}
		one = one || has
	}
}

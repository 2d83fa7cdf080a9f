// Package faults breaks what runs, and checks that all guarantees hold: the fault cases F1 to F38 that are about
// streams, replicas, leaders and clusters, each a test of its name. docs/faults.md lists them with what was measured.
//
// Two grounds: the bed is two whole clusters of the testbed with semaphore installed the documented way and a proxy
// before each broker; the lab is the programs of bin/ as processes on loopback against an apiserver, for what needs
// more brokers, exporters or agents than a whole cluster each would allow. Files are cut by ground (bed, lab), by what
// is looked at (model: what should be there; record: what changed; guard: both, and traffic, around one case), and by
// what breaks.
//
// Nothing here imports broker, exporter or agent but where a test plays one of them against the others.
package faults

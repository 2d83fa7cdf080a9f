// Package faults breaks running parts and checks that all guarantees hold. It has a test for each of the fault cases F1
// to F38 that concern streams, replicas, leaders and clusters. docs/faults.md lists them with measurements.
//
// There are two environments. The bed is two complete clusters of the testbed, with semaphore installed as documented
// and a proxy in front of each broker. The lab runs the programs of bin/ as processes on loopback against an apiserver,
// for cases that need many brokers, exporters or agents. The files: bed and lab (environments), model (the expected
// state), record (the changes), guard (both, and traffic, around a case), and a file for each kind of fault.
package faults

// Package apply writes what the engines decide. No other part of the broker writes Services, EndpointSlices and
// Calico's objects.
//
// It owns, for each type of object, an instance of one loop (Objects): an informer of the objects that carry our
// labels, a client, a queue of names and the metrics. In go the names that engines mark and the informer's events; out
// go requests to the apiserver, Events and records. What is sent, and when, is decided by a writes.Machine.
//
// It decides nothing about clusters, names or contents, and may not import an engine or a stream.
//
// Of the broker's packages it may import apply/writes, endpoints, events, informers, kinds, migrate and propagation.
package apply

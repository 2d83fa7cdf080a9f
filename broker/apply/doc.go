// Package apply writes what the engines decide. No other part of the broker writes Services, EndpointSlices and
// Calico's objects.
//
// For each type of object, it owns an instance of one loop (Objects): an informer of the objects with the broker's
// labels, a client, a queue of names and the metrics. Its input are the names that engines mark, and the informer's
// events. Its output are requests to the apiserver, Events and records. A writes.Machine decides what is sent, and
// when.
//
// It also watches for other parts what they need of the own cluster: namespaces, and the pods of agents. It decides
// nothing about clusters, names or contents.
package apply

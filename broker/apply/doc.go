// Package apply writes the engines' objects. No other part of the broker writes Services, EndpointSlices and Calico's
// objects.
//
// For each type of object, it owns an instance of one loop (Objects): an informer of the objects with the broker's
// labels, a client, a queue of names and the metrics. Its input are the names that engines mark, and the informer's
// events. Its output are requests to the apiserver, Events and records. A writes.Machine decides the requests and their
// times.
//
// It also watches objects of the own cluster for other parts: namespaces, and the pods of agents. It decides nothing
// about clusters, names or contents.
package apply

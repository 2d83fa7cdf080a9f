// Package remotes decides the meaning of RemoteClusters: which of them are in effect with which spec, by which UDP
// port, and the faults of the others.
//
// It is pure: inputs are objects, those in effect before and the part's own configuration; outputs are remotes in the
// form of the engines (internal/config) and a verdict on each object. Package follow watches and stores objects.
package remotes

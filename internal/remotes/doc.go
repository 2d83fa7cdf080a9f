// Package remotes decides what RemoteClusters mean: which of them are in effect with which spec, by which UDP port, and
// what is wrong with the others.
//
// It is pure: inputs are objects, what was in effect before and the part's own configuration; outputs are remotes in
// the form of the engines (internal/config) and a verdict on each object. Package follow watches and stores objects.
package remotes

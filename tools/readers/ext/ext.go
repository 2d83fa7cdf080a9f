// Package ext stands in for a module of Traefik's that is published nowhere: extensions embed their options there.
package ext

type (
	HTTP   struct{}
	Router struct{}
)

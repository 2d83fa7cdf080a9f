// Package rules tests the alerts of deploy/features/alerts with Prometheus' own engine. It is a module of its own, as
// nothing else needs Prometheus.
package rules

// Package e2e is the main road, walked: two clusters of the testbed, semaphore installed in
// both the documented way, and the steps that show what it is for. The demo prints the
// steps, the tests run them.
//
// It uses the product only as a user does: manifests, configuration files, semaphorectl
// and kubectl. It imports nothing of broker, exporter and agent.
package e2e

// Package e2e tests the main use of semaphore: two clusters of the testbed, an installation as documented, and steps
// that show what it is for. The demo prints the steps, the tests run them.
//
// The package uses semaphore only as a user does: manifests, configuration files, semaphorectl and kubectl. It does not
// import broker, exporter and agent.
package e2e

package e2e

import (
	"cmp"
	"fmt"
)

// echoes is a Deployment in the namespace shop whose pods answer requests on port 8080.
type echoes struct {
	name string
	// app is the pods' label app; the name if empty.
	app string
	// replicas defaults to 1.
	replicas int
	// grace is the termination grace period in seconds, 1 by default.
	grace int
	// lifecycle of the container.
	lifecycle string
	// labels are more labels of the pods, "group: one", and spec more fields of their spec, "nodeName: n1".
	labels, spec string
}

// lingering makes a pod answer for 20 s after its deletion, and lingeringGrace is the grace period for that. Clients
// that do not know about the deletion yet are still answered: an apiserver on a busy machine may get no CPU time for 15
// s.
const (
	lingering      = "preStop: {sleep: {seconds: 20}}"
	lingeringGrace = 30
)

// yaml returns the manifest as a complete document. Its readiness probe tolerates a pod that gets no CPU time for a
// while.
func (e echoes) yaml() string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: shop}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s, %[6]s}}
    spec:
      %[7]s
      terminationGracePeriodSeconds: %[4]d
      containers:
        - name: echo
          image: testbed.local/testbed:1
          command: [testbed, echo]
          ports: [{containerPort: 8080, name: http}]
          readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1, timeoutSeconds: 10,
            failureThreshold: 10}
          lifecycle: {%[5]s}
---
`, e.name, cmp.Or(e.app, e.name), max(1, e.replicas), max(1, e.grace), e.lifecycle, e.labels,
		e.spec)
}

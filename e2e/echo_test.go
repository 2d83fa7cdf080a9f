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
	// replicas are 1 if 0.
	replicas int
	// grace is how many seconds a pod has from its end's beginning; 1 if 0.
	grace int
	// strategy of updates, and lifecycle of the container; the defaults of Kubernetes if empty.
	strategy, lifecycle string
}

// lingering is how long pods whose Services nobody may miss answer after they have begun to end, and lingeringGrace
// their grace. Who has not heard of the end yet still gets an answer: it may be that an apiserver gets no processor for
// 15 s.
const (
	lingering      = "preStop: {sleep: {seconds: 20}}"
	lingeringGrace = 30
)

// yaml returns the manifest, which ends a document. A pod that was ready once stays so while it gets no processor.
func (e echoes) yaml() string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: shop}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[2]s}}
  strategy: {%[5]s}
  template:
    metadata: {labels: {app: %[2]s}}
    spec:
      terminationGracePeriodSeconds: %[4]d
      containers:
        - name: echo
          image: testbed.local/testbed:1
          command: [testbed, echo]
          ports: [{containerPort: 8080, name: http}]
          readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 10}
          lifecycle: {%[6]s}
---
`, e.name, cmp.Or(e.app, e.name), max(1, e.replicas), max(1, e.grace), e.strategy, e.lifecycle)
}

package testbed

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/kube-semaphore/semaphore/test/testbed/authority"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
)

// calicoAPIPort is the port of the Calico API server. It runs next to the apiserver.
const calicoAPIPort = 5443

// calicoAPI registers the Calico API server for projectcalico.org/v3, with the names of Calico's manifests.
const calicoAPI = `
apiVersion: v1
kind: Namespace
metadata: {name: calico-apiserver}
---
apiVersion: v1
kind: Service
metadata: {name: calico-api, namespace: calico-apiserver}
spec:
  ports: [{name: apiserver, port: 443, targetPort: 5443}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: calico-api-1, namespace: calico-apiserver, labels: {kubernetes.io/service-name: calico-api}}
addressType: IPv4
ports: [{name: apiserver, port: 5443, protocol: TCP}]
endpoints: [{addresses: [$ADDRESS]}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v3.projectcalico.org}
spec:
  group: projectcalico.org
  version: v3
  groupPriorityMinimum: 1500
  versionPriority: 200
  caBundle: $CA
  service: {namespace: calico-apiserver, name: calico-api, port: 443}
`

// StartCalicoAPIServer runs the Calico API server in the control plane. It returns when the apiserver serves
// projectcalico.org/v3, the version that Calico's documentation uses for policies. Without it, the apiserver serves
// Calico's types only in their stored version, crd.projectcalico.org/v1.
func (c *Cluster) StartCalicoAPIServer(ctx context.Context) error {
	const name = "calico-apiserver"
	ca, err := authority.New(name)
	if err != nil {
		return err
	}
	pair, err := ca.Server([]string{"calico-api.calico-apiserver.svc"}, []netip.Addr{c.addresses.controlPlane})
	if err != nil {
		return err
	}
	dir := filepath.Join(c.dir, name)
	if err := writeFiles(dir, map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key}); err != nil {
		return err
	}
	program, err := components.EnsureCalicoAPIServer(ctx, c.tb.options.Progress)
	if err != nil {
		return err
	}
	if err := c.run(ctx, name, c.controlPlane, []string{filepath.Base(program),
		"--bind-address=" + c.addresses.controlPlane.String(), fmt.Sprintf("--secure-port=%d", calicoAPIPort),
		"--tls-cert-file=" + filepath.Join(dir, "tls.crt"), "--tls-private-key-file=" + filepath.Join(dir, "tls.key"),
		"--kubeconfig=" + c.Kubeconfig, "--authentication-kubeconfig=" + c.Kubeconfig, "--authorization-kubeconfig=" +
			c.Kubeconfig,
	}, program, "DATASTORE_TYPE=kubernetes", "KUBECONFIG="+c.Kubeconfig, "LOG_LEVEL=error"); err != nil {
		return err
	}
	if err := c.createYAML(ctx, calicoAPI, "ADDRESS", c.addresses.controlPlane.String(), "CA",
		base64.StdEncoding.EncodeToString(ca.Cert)); err != nil {
		return err
	}
	return poll(ctx, patience, "projectcalico.org/v3 of "+c.Name, func(ctx context.Context) error {
		if _, err := c.Client.Discovery().RESTClient().Get().AbsPath("/apis/projectcalico.org/v3").DoRaw(ctx); err != nil {
			return err
		}
		_, err := c.Client.Discovery().ServerPreferredResources() // an error while the group's resources are not known
		return err
	})
}

package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
)

// certManagerObject has the used fields of cert-manager's API, https://cert-manager.io/docs/reference/api-docs/. An
// unknown field in a manifest is then an error.
type certManagerObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		// Issuer.
		SelfSigned *struct{} `json:"selfSigned"`
		CA         *struct {
			SecretName string `json:"secretName"`
		} `json:"ca"`
		// Certificate.
		SecretName  string          `json:"secretName"`
		CommonName  string          `json:"commonName"`
		URIs        []string        `json:"uris"`
		IsCA        bool            `json:"isCA"`
		Usages      []string        `json:"usages"`
		Duration    metav1.Duration `json:"duration"`
		RenewBefore metav1.Duration `json:"renewBefore"`
		PrivateKey  struct {
			Algorithm      string `json:"algorithm"`
			Size           int    `json:"size"`
			Encoding       string `json:"encoding"`
			RotationPolicy string `json:"rotationPolicy"`
		} `json:"privateKey"`
		IssuerRef struct {
			Group string `json:"group"`
			Kind  string `json:"kind"`
			Name  string `json:"name"`
		} `json:"issuerRef"`
	} `json:"spec"`
}

// foreign decodes an object of an API of cert-manager or OpenShift, which the server of these tests does not serve.
func foreign(data []byte) (runtime.Object, error) {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, o); err != nil {
		return nil, err
	}
	if o.GetAPIVersion() == openshift { // see platforms_test.go
		return o, nil
	}
	if o.GetKind() == "CustomResourceDefinition" && o.GetName() == v1alpha1.CRDName { // see api/v1alpha1
		return o, nil
	}
	// These are objects of the Prometheus Operator; tools/rules and TestMonitoring check their content.
	if o.GetAPIVersion() == "monitoring.coreos.com/v1" &&
		(o.GetKind() == "PodMonitor" || o.GetKind() == "PrometheusRule") {
		return o, nil
	}
	if o.GetAPIVersion() != "cert-manager.io/v1" {
		return nil, fmt.Errorf("%s %s: is of no API that is known here", o.GetAPIVersion(), o.GetKind())
	}
	_, err := certManager(o)
	return o, err
}

func certManager(o *unstructured.Unstructured) (c certManagerObject, err error) {
	data, err := json.Marshal(o)
	if err != nil {
		return c, err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return c, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return c, nil
}

// TestCertManager checks that with cert-manager each part has the identity and the Secret that the other manifests
// expect, in any cluster and namespace.
func TestCertManager(t *testing.T) {
	objects := build(t, overlay(t, `
namespace: elsewhere
resources: [DEPLOY/agent, DEPLOY/broker, DEPLOY/exporter]
components: [DEPLOY/features/cert-manager, DEPLOY/cluster-name]
configMapGenerator:
  - name: semaphore-cluster
    namespace: semaphore
    literals: [name=aws-1]
`))
	issuers := map[string]certManagerObject{}
	certificates := map[string]certManagerObject{}
	for _, o := range objects {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		c, err := certManager(u)
		must(t, err)
		equal(t, c.Name+": namespace", c.Namespace, "elsewhere")
		switch c.Kind {
		case "Issuer":
			issuers[c.Name] = c
		case "Certificate":
			certificates[strings.Join(c.Spec.URIs, " ")] = c
		default:
			t.Errorf("%s %s", c.Kind, c.Name)
		}
	}
	if len(certificates) != 4 || len(issuers) != 2 {
		t.Errorf("%d certificates, %d issuers", len(certificates), len(issuers))
	}
	for part, secret := range map[string]string{
		"exporter": volume(t, find[*appsv1.Deployment](t, objects, "semaphore-exporter").Spec.Template.Spec,
			"tls").Secret.SecretName,
		"broker": volume(t, find[*appsv1.Deployment](t, objects, "semaphore-broker").Spec.Template.Spec,
			"tls").Secret.SecretName,
		// The name is the one of `semaphorectl pki secrets`.
		"semaphorectl": "semaphorectl-tls",
	} {
		c, ok := certificates["spiffe://aws-1/"+part]
		if !ok {
			t.Errorf("no certificate of the %s", part)
			continue
		}
		equal(t, part+": Secret", c.Spec.SecretName, secret)
		// The requirements of go-spiffe for a leaf certificate, and a key encoding that it can read.
		if c.Spec.IsCA || slices.Contains(c.Spec.Usages, "cert sign") ||
			!slices.Contains(c.Spec.Usages, "digital signature") ||
			!slices.Contains(c.Spec.Usages, "client auth") || !slices.Contains(c.Spec.Usages, "server auth") ||
			c.Spec.PrivateKey.Encoding != "PKCS8" {
			t.Errorf("%s: %+v", part, c.Spec)
		}
		if d := c.Spec.Duration.Duration; d < 24*time.Hour || d > 90*24*time.Hour || c.Spec.RenewBefore.Duration < d/5 {
			// check warns in the last fifth of the validity, so cert-manager must renew before that.
			t.Errorf("%s: for %s, renewed %s before", part, d, c.Spec.RenewBefore.Duration)
		}
		equal(t, part+": key", c.Spec.PrivateKey.RotationPolicy, "Always")
		issuer := issuers[c.Spec.IssuerRef.Name]
		ca := certificates["spiffe://aws-1"]
		if issuer.Spec.CA == nil || issuer.Spec.CA.SecretName != ca.Spec.SecretName || !ca.Spec.IsCA ||
			issuers[ca.Spec.IssuerRef.Name].Spec.SelfSigned == nil {
			t.Errorf("%s: it is not of the cluster's authority", part)
		}
	}
}

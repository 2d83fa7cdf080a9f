package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// felixUser is the Kubernetes user that Felix is; its rights are in manifests/felix.yaml.
const felixUser = "calico-felix"

// installCalico registers Calico's resources and makes those that Felix needs to begin.
func (c *Cluster) installCalico(ctx context.Context) error {
	done := c.tb.times.span(c.Name, "Calico's resources")
	defer done()
	if err := c.installCRDs(ctx, c.tb.paths.CalicoCRDs); err != nil {
		return fmt.Errorf("register Calico's CRDs in %s: %w", c.Name, err)
	}
	return c.createYAML(ctx, manifest("calico.yaml"), "POD_CIDR", c.PodCIDR.String(), "CLUSTER", c.Name)
}

// installCRDs creates the definitions in a directory and returns when all are served.
func (c *Cluster) installCRDs(ctx context.Context, dir string) error {
	client, err := apiextensionsclient.NewForConfig(protobuf(c.REST))
	if err != nil {
		return err
	}
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, f := range files {
		g.Go(func() error {
			data, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			// Each begins with a document separator, and some end with one.
			text := strings.Trim(strings.TrimSpace(string(data)), "-")
			var crd apiextensions.CustomResourceDefinition
			if err := yaml.Unmarshal([]byte(text), &crd); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
			if _, err := crds.Create(gctx, &crd, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return poll(ctx, 60*time.Second, "CRDs of "+c.Name, func(ctx context.Context) error {
		list, err := crds.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var waiting []string
		for _, crd := range list.Items {
			if !established(&crd) {
				waiting = append(waiting, crd.Name)
			}
		}
		if len(waiting) > 0 || len(list.Items) < len(files) {
			return fmt.Errorf("%d of %d are there, not established: %v", len(list.Items), len(files), waiting)
		}
		return nil
	})
}

func established(crd *apiextensions.CustomResourceDefinition) bool {
	for _, condition := range crd.Status.Conditions {
		if condition.Type == apiextensions.Established {
			return condition.Status == apiextensions.ConditionTrue
		}
	}
	return false
}

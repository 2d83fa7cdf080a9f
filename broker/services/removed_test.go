package services

import (
	"testing"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// TestSilentDeciderIsRemoved: c2 decided on an import; the broker was restarted while c2 is silent, and the
// operator removes the RemoteCluster of c2. c3, which is complete and exports the name, decides from then on.
func TestSilentDeciderIsRemoved(t *testing.T) {
	c := importing(t)
	c.SetNamespaces([]string{"shop"})
	others := export(exported(onPort("http", "TCP", 8080)), endpoints("echo", "10.4.0.1"))
	c.apply("c2", export(exported(onPort("http", "TCP", 80)), endpoints("echo", "10.2.0.1"))...)
	c.apply("c3", others...)
	c = c.restarted(enabled)
	c.SetNamespaces([]string{"shop"})
	for name := range c.Services {
		c.observe(name)
	}
	c.apply("c3", others...)
	c.heard("c1", "c2-a", "c3")
	var left []config.Remote
	for _, r := range configured(t, "c1").Remotes {
		if r.Name != "c2" {
			left = append(left, r)
		}
	}
	c.follow(c.Follow(left, c.Now))
	s, wanted := c.Service(derivedEcho)
	if !wanted || s == nil {
		t.Errorf("the derived Service is not known (wanted %v): it stays as it is", wanted)
	}
	i, wanted := c.Import("shop/echo")
	if !wanted || i == nil {
		t.Errorf("the ServiceImport is not known: it stays as it is")
	} else if len(i.Status.Clusters) != 1 {
		t.Errorf("clusters %v", i.Status.Clusters)
	}
}

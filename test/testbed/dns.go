package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// corefile is the configuration of CoreDNS. It serves the cluster's domain and no other. CoreDNS reloads it within two
// seconds.
const corefile = `.:53 {
    errors
    health
    ready
    kubernetes ` + clusterDomain + ` in-addr.arpa ip6.arpa {
        pods insecure
        endpoint_pod_names
        ttl 5
    }
    cache 5
    reload 2s
}
`

// dnsConfig is the name of the ConfigMap that holds the Corefile.
const dnsNamespace, dnsConfig = "kube-system", "coredns"

// installDNS creates the objects of CoreDNS. Its pod is scheduled when a node is Ready.
func (c *Cluster) installDNS(ctx context.Context) error {
	return c.createYAML(ctx, manifest("coredns.yaml"),
		"CLUSTER_IP", c.addresses.dns.String(), "COREFILE", indent(corefile, "    "))
}

// AppendCorefile appends server blocks for further domains to the Corefile. They replace the blocks of an earlier call;
// an empty string removes them. It returns when the file in CoreDNS's pods has changed; CoreDNS reloads it within two
// seconds.
func (c *Cluster) AppendCorefile(ctx context.Context, blocks string) error {
	text := corefile
	if strings.TrimSpace(blocks) != "" {
		text += "\n" + strings.TrimSpace(blocks) + "\n"
	}
	maps := c.Client.CoreV1().ConfigMaps(dnsNamespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		config, err := maps.Get(ctx, dnsConfig, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if config.Data["Corefile"] == text {
			return nil
		}
		config.Data["Corefile"] = text
		_, err = maps.Update(ctx, config, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("update the Corefile of %s: %w", c.Name, err)
	}
	return WaitEvery(ctx, patience, 500*time.Millisecond, "the Corefile of "+c.Name+" in its pods",
		func(ctx context.Context) error {
			list, err := c.Client.CoreV1().Pods(dnsNamespace).List(ctx, metav1.ListOptions{LabelSelector: dnsSelector})
			if err != nil {
				return err
			}
			for _, pod := range list.Items {
				node := c.Node(pod.Spec.NodeName)
				if node == nil || pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
					continue
				}
				file := node.path("/var/lib/kubelet/pods/" + string(pod.UID) + "/volumes/kubernetes.io~configmap/config/Corefile")
				if has, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(has)) != strings.TrimSpace(text) {
					return errors.Join(fmt.Errorf("pod %s has another", pod.Name), err, c.SyncPods(ctx, dnsNamespace, dnsSelector))
				}
			}
			return nil
		})
}

const dnsSelector = "k8s-app=kube-dns"

// SyncPods makes kubelet sync pods now, by changing an annotation of each. By itself, kubelet takes up to eight seconds
// (syncFrequency) to update the volume of a changed ConfigMap or Secret. After this call it does so immediately, if its
// watch has delivered the change.
func (c *Cluster) SyncPods(ctx context.Context, namespace, selector string) error {
	pods := c.Client.CoreV1().Pods(namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"testbed.semaphore/sync":%q}}}`,
		time.Now().Format(time.RFC3339Nano))
	for _, pod := range list.Items {
		_, err := pods.Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// waitDNS waits until CoreDNS answers through its ClusterIP from a node, which shows that kube-proxy has programmed its
// endpoint.
func (c *Cluster) waitDNS(ctx context.Context, from *Node) error {
	done := c.tb.times.span(c.Name, "CoreDNS answers through its ClusterIP")
	defer done()
	within := 300 * time.Millisecond
	return poll(ctx, patience, "CoreDNS of "+c.Name, func(ctx context.Context) error {
		// A packet is lost while no rule redirects it. On a busy machine an answer may be slow, so the timeout grows.
		ctx, cancel := context.WithTimeout(ctx, within)
		within = min(within*5/4, 5*time.Second)
		defer cancel()
		// A canceled lookup continues in goroutines of package net for up to ten seconds. Close its connection when the
		// attempt ends, so that no goroutine outlives it.
		resolver := &net.Resolver{
			PreferGo: true,
			Dial: func(_ context.Context, network, _ string) (net.Conn, error) {
				conn, err := from.Netns.DialContext(ctx, network, hostPort(c.addresses.dns, 53))
				if err != nil {
					return nil, err
				}
				context.AfterFunc(ctx, func() { conn.Close() })
				return conn, nil
			},
		}
		ips, err := resolver.LookupNetIP(ctx, "ip4", "kubernetes.default.svc."+clusterDomain+".")
		if err != nil {
			return err
		}
		if len(ips) != 1 || ips[0].Unmap() != c.addresses.apiService {
			return errors.New("kubernetes.default.svc is at " + fmt.Sprint(ips))
		}
		return nil
	})
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by)
}

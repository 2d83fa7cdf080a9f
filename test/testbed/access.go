package testbed

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/semaphore/test/testbed/authority"
)

// access holds what a client needs to reach a cluster's apiserver: its URL, and the authority that signs client
// certificates.
type access struct {
	cluster string
	server  string // URL
	ca      *authority.Authority
}

// kubeconfig writes a kubeconfig file with a client certificate for the user.
func (a *access) kubeconfig(path, user string, groups ...string) error {
	pair, err := a.ca.Client(user, groups...)
	if err != nil {
		return err
	}
	file := clientcmdapi.NewConfig()
	file.Clusters[a.cluster] = &clientcmdapi.Cluster{Server: a.server, CertificateAuthorityData: a.ca.Cert}
	file.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}
	file.Contexts[a.cluster] = &clientcmdapi.Context{Cluster: a.cluster, AuthInfo: user}
	file.CurrentContext = a.cluster
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", user, err)
	}
	return nil
}

// Kubeconfig returns the path of a file that has a context for each cluster, named after the cluster, with
// administrator rights. The apiservers are reachable only from inside the fabric, for example from `testbed shell`.
func (tb *Testbed) Kubeconfig() string { return filepath.Join(tb.state.path, "kubeconfig") }

// writeKubeconfig merges the kubeconfigs of the clusters' administrators into one file.
func (tb *Testbed) writeKubeconfig() error {
	all := clientcmdapi.NewConfig()
	for _, c := range tb.clusters {
		one, err := clientcmd.LoadFromFile(c.Kubeconfig)
		if err != nil {
			return fmt.Errorf("kubeconfig of %s: %w", c.Name, err)
		}
		user := "admin@" + c.Name
		all.Clusters[c.Name], all.AuthInfos[user] = one.Clusters[c.Name], one.AuthInfos["admin"]
		all.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: user}
	}
	all.CurrentContext = tb.clusters[0].Name
	return clientcmd.WriteToFile(*all, tb.Kubeconfig())
}

// rest returns a client configuration for this process. It has the same user and server as kubeconfig would write.
func (a *access) rest(user string, groups ...string) (*rest.Config, error) {
	pair, err := a.ca.Client(user, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            a.server,
		TLSClientConfig: rest.TLSClientConfig{CAData: a.ca.Cert, CertData: pair.Cert, KeyData: pair.Key},
		QPS:             -1, // -1 disables client-side rate limiting
		// The apiserver runs on this machine, where compression costs more time than it saves.
		DisableCompression: true,
	}, nil
}

// writeFiles writes files with mode 0600.
func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

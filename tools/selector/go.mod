// A comparison with Calico's parser of selectors, in a module of its own: go install refuses a module that excludes
// versions.
module github.com/kube-semaphore/semaphore/tools/selector

go 1.26.0

require (
	github.com/kube-semaphore/semaphore v0.0.0
	github.com/projectcalico/calico v1.11.0-cni-plugin.0.20250813170300-a0db560f0520
	github.com/sirupsen/logrus v1.9.4
)

require golang.org/x/sys v0.49.0 // indirect

replace github.com/kube-semaphore/semaphore => ../..

// Calico's go.mod asks for what is nowhere: it replaces it by other versions, which counts in its own builds only.
exclude (
	github.com/Microsoft/hcsshim v0.11.8
	golang.zx2c4.com/wireguard v0.0.20200121
	k8s.io/kube-scheduler v0.0.0
	k8s.io/kubectl v0.0.0
	k8s.io/legacy-cloud-providers v0.0.0
	k8s.io/pod-security-admission v0.0.0
)

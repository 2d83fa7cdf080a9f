//go:build linux

package kubelet

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func testFilesystem(c *cluster) {
	c.pod("fs", "", func(p *corev1.Pod) {
		onNode("n1")(p)
		p.Spec.Containers[0].Args = []string{`
cat /etc/hostname /etc/resolv.conf; grep fs /etc/hosts; id
curl --version | head -c 5; echo; wg --version | head -c 5; echo; command -v server || echo no server
for d in / /etc /usr/bin /tmp /run /scratch; do touch $d/x 2>/dev/null && echo $d writable || echo $d read-only; done
stat -c %F /dev/net/tun; readlink /var/run; hostname; grep CapEff /proc/self/status; ls /etc/ssl/certs | grep -c . | grep -qv '^0$' && echo certs`}
		charDevice := corev1.HostPathCharDev
		yes := true
		p.Spec.Volumes = []corev1.Volume{
			{Name: "tun", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev/net/tun", Type: &charDevice}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "tun", MountPath: "/dev/net/tun"}, {Name: "scratch", MountPath: "/scratch"}}
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
			ReadOnlyRootFilesystem: &yes,
			Capabilities:           &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
		}
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
	})
	p := c.wait("fs", "done", succeeded)
	want := `fs
search shop.svc.cluster.local svc.cluster.local cluster.local
nameserver 10.101.0.10
options ndots:5
` + p.Status.PodIP + `	fs
uid=0(root) gid=0(root) groups=0(root)
curl 
wireg
no server
/ read-only
/etc read-only
/usr/bin read-only
/tmp read-only
/run read-only
/scratch writable
character special file
/run
fs
CapEff:	0000000000001000
certs
`
	if diff := cmp.Diff(want, c.output("fs")); diff != "" {
		c.t.Error(diff)
	}

	c.server("user", func(p *corev1.Pod) {
		number := func(n int64) *int64 { return &n }
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: number(65532), RunAsGroup: number(65532), FSGroup: number(77)}
		p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}
	})
	c.wait("user", "ready", ready)
	if got := c.mustRun("user", "id -u; id -G; touch /scratch/x; stat -c '%u %g' /scratch/x; ls -l /usr/local/bin/server | wc -l"); got != "65532\n65532 77\n65532 77\n1\n" {
		c.t.Errorf("as another user: %q", got)
	}
}

func testEnvironment(c *cluster) {
	ctx := c.t.Context()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	service, err := c.client.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = c.client.CoreV1().Services(namespace).Delete(ctx, "web", metav1.DeleteOptions{}) }()
	waitFor(c.t, "the service in the kubelet's cache", func() bool {
		_, err := c.services.Services(namespace).Get("web")
		return err == nil
	})
	c.pod("env", `echo $POD_IP $NODE $WEB_SERVICE_HOST $KUBERNETES_SERVICE_HOST $(GREETING) $FROM_ENV; pwd`, func(p *corev1.Pod) {
		field := func(path string) *corev1.EnvVarSource {
			return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
		}
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].WorkingDir = "/some/where"
		p.Spec.Containers[0].Env = []corev1.EnvVar{
			{Name: "POD_IP", ValueFrom: field("status.podIP")}, {Name: "NODE", ValueFrom: field("spec.nodeName")},
			{Name: "GREETING", Value: "hello"}, {Name: "FROM_ENV", Value: "$(GREETING)!"},
		}
	})
	p := c.wait("env", "done", succeeded)
	want := fmt.Sprintf("%s %s %s 10.101.0.1 hello hello!\n/some/where\n", p.Status.PodIP, p.Spec.NodeName, service.Spec.ClusterIP)
	if got := c.output("env"); got != want {
		c.t.Errorf("output %q, want %q", got, want)
	}
}

func testVolumes(c *cluster) {
	ctx := c.t.Context()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config"}, Data: map[string]string{"a": "1", "b": "2"}}
	if _, err := c.client.CoreV1().ConfigMaps(namespace).Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	node := c.machines["n1"]
	if err := os.MkdirAll(filepath.Join(node.Root, "var/lib"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	c.server("vol", func(p *corev1.Pod) {
		onNode("n1")(p)
		p.Labels = map[string]string{"app": "vol"}
		create, yes, mode := corev1.HostPathDirectoryOrCreate, true, int32(0o400)
		object := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
		p.Spec.Volumes = []corev1.Volume{
			{Name: "cm", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object("config")}}},
			{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "late", DefaultMode: &mode}}},
			{Name: "none", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object("none"), Optional: &yes}}},
			{Name: "state", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/state", Type: &create}}},
			{Name: "mixed", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: object("config"), Items: []corev1.KeyToPath{{Key: "a", Path: "sub/first"}}}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
					{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
			}}}},
		}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
			{Name: "cm", MountPath: "/cm"}, {Name: "secret", MountPath: "/secret"}, {Name: "none", MountPath: "/none"},
			{Name: "state", MountPath: "/var/lib/state"}, {Name: "mixed", MountPath: "/mixed"},
			{Name: "cm", MountPath: "/etc/one", SubPath: "b"},
		}
	})
	// It waits for the secret, and says so.
	time.Sleep(300 * time.Millisecond)
	if p := c.wait("vol", "pending", func(p *corev1.Pod) bool { return p.Status.PodIP != "" }); p.Status.Phase != corev1.PodPending {
		c.t.Errorf("phase %s without its secret", p.Status.Phase)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Data: map[string][]byte{"k": []byte("hidden")}}
	if _, err := c.client.CoreV1().Secrets(namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.wait("vol", "ready", ready)
	got := c.mustRun("vol", `cd /; cat cm/a cm/b etc/one mixed/sub/first secret/k; echo; cat mixed/labels; ls /cm /none; stat -Lc %a secret/k cm/a; echo kept >/var/lib/state/f; touch /cm/x 2>&1 | grep -o 'Read-only.*'`)
	want := "12" + "2" + "1" + "hidden\napp=\"vol\"\n/cm:\na\nb\n\n/none:\n400\n644\nRead-only file system\n"
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Error(diff)
	}
	if data, err := os.ReadFile(filepath.Join(node.Root, "var/lib/state/f")); err != nil || string(data) != "kept\n" {
		c.t.Errorf("file on the node: %q, %v", data, err)
	}

	cm.Data = map[string]string{"a": "new", "c": "3"}
	started := time.Now()
	if _, err := c.client.CoreV1().ConfigMaps(namespace).Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	waitFor(c.t, "the change in the volume", func() bool { out, _ := c.run("vol", "cat /cm/a"); return out == "new" })
	c.t.Logf("change of a ConfigMap seen in the pod after %s", time.Since(started))
	if got := c.mustRun("vol", "ls /cm; cat /mixed/sub/first /etc/one"); got != "a\nc\nnew2" {
		c.t.Errorf("after the change: %q", got)
	}
	patch := []byte(`{"metadata":{"labels":{"app":"renamed"}}}`)
	if _, err := c.client.CoreV1().Pods(namespace).Patch(ctx, "vol", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
	waitFor(c.t, "the new label in the volume", func() bool {
		out, _ := c.run("vol", "cat /mixed/labels")
		return out == "app=\"renamed\"\n"
	})
}

func testTokens(c *cluster) {
	p := c.server("token", func(p *corev1.Pod) {
		seconds := int64(600)
		p.Spec.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: "semaphore-broker", ExpirationSeconds: &seconds, Path: "token"}}}}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "token", MountPath: "/var/run/secrets/tokens"}}
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: ptr(int64(65532))}
	})
	c.wait("token", "ready", ready)
	out := c.mustRun("token", "cat /var/run/secrets/tokens/token; echo; stat -Lc '%a %u' /var/run/secrets/tokens/token")
	text, mode, _ := strings.Cut(out, "\n")
	if mode != "600 65532\n" {
		c.t.Errorf("mode and owner of the token: %q", mode)
	}
	review, err := c.client.AuthenticationV1().TokenReviews().Create(c.t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: text, Audiences: []string{"semaphore-broker"}}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	extra := review.Status.User.Extra
	node, err := c.client.CoreV1().Nodes().Get(c.t.Context(), c.wait("token", "ready", ready).Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	if !review.Status.Authenticated || extra["authentication.kubernetes.io/pod-uid"][0] != string(p.UID) ||
		extra["authentication.kubernetes.io/node-name"][0] != node.Name || extra["authentication.kubernetes.io/node-uid"][0] != string(node.UID) {
		c.t.Errorf("review: %+v", review.Status)
	}
	var claims struct{ Exp, Iat int64 }
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(text, ".")[1])
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(payload, &claims); err != nil || claims.Exp-claims.Iat != 600 {
		c.t.Errorf("life of the token: %+v, %v", claims, err)
	}
}

//go:build linux

package kubelet

import (
	"context"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// expand replaces $(NAME) by its value; $$ stands for a dollar sign, and a name without a value is left as it stands, as
// the API documents for command, args and env.
func expand(s string, value func(name string) (string, bool)) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i:], ')')
			if end < 0 {
				b.WriteString(s[i:])
				return b.String()
			}
			if v, ok := value(s[i+2 : i+end]); ok {
				b.WriteString(v)
			} else {
				b.WriteString(s[i : i+end+1])
			}
			i += end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

// environment is an ordered set of variables.
type environment struct {
	names  []string
	values map[string]string
}

func (e *environment) set(name, value string) {
	if e.values == nil {
		e.values = map[string]string{}
	}
	if _, ok := e.values[name]; !ok {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

func (e *environment) get(name string) (string, bool) {
	v, ok := e.values[name]
	return v, ok
}

func (e *environment) list() []string {
	var list []string
	for _, n := range e.names {
		list = append(list, n+"="+e.values[n])
	}
	return list
}

// sources are where values of a pod come from.
type sources interface {
	configMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) // IsNotFound when there is none
	secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// containerEnv is the environment of a container: what the runtime gives, then services, envFrom, env.
func containerEnv(ctx context.Context, pod *corev1.Pod, c *corev1.Container, place placement, services []*corev1.Service, api netip.AddrPort,
	from sources) (*environment, error) {
	env := &environment{}
	env.set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	env.set("HOSTNAME", hostname(pod, pod.Spec.NodeName))
	env.set("HOME", "/")
	serviceEnv(env, services, api)
	for _, f := range c.EnvFrom {
		data, err := envFrom(ctx, pod.Namespace, f, from)
		if err != nil {
			return nil, err
		}
		for _, k := range sortedKeys(data) {
			env.set(f.Prefix+k, data[k])
		}
	}
	for i := range c.Env {
		value, ok, err := envValue(ctx, pod, c, &c.Env[i], place, env, from)
		if err != nil {
			return nil, fmt.Errorf("env %s: %w", c.Env[i].Name, err)
		}
		if ok {
			env.set(c.Env[i].Name, value)
		}
	}
	return env, nil
}

func envFrom(ctx context.Context, namespace string, f corev1.EnvFromSource, from sources) (map[string]string, error) {
	switch {
	case f.ConfigMapRef != nil:
		cm, err := from.configMap(ctx, namespace, f.ConfigMapRef.Name)
		if err != nil {
			return nil, allowMissing(err, f.ConfigMapRef.Optional)
		}
		return cm.Data, nil
	case f.SecretRef != nil:
		s, err := from.secret(ctx, namespace, f.SecretRef.Name)
		if err != nil {
			return nil, allowMissing(err, f.SecretRef.Optional)
		}
		data := map[string]string{}
		for k, v := range s.Data {
			data[k] = string(v)
		}
		return data, nil
	}
	return nil, nil
}

func envValue(ctx context.Context, pod *corev1.Pod, c *corev1.Container, v *corev1.EnvVar, place placement, env *environment,
	from sources) (value string, ok bool, err error) {
	if v.ValueFrom == nil {
		return expand(v.Value, env.get), true, nil
	}
	switch f := v.ValueFrom; {
	case f.FieldRef != nil:
		value, err = fieldValue(pod, f.FieldRef.FieldPath, place)
		return value, err == nil, err
	case f.ResourceFieldRef != nil:
		value, err = resourceValue(c, f.ResourceFieldRef)
		return value, err == nil, err
	case f.ConfigMapKeyRef != nil:
		ref := f.ConfigMapKeyRef
		cm, err := from.configMap(ctx, pod.Namespace, ref.Name)
		if err != nil {
			return "", false, allowMissing(err, ref.Optional)
		}
		value, ok = cm.Data[ref.Key]
		if !ok && !isTrue(ref.Optional) {
			return "", false, fmt.Errorf("configmap %s/%s has no key %s", pod.Namespace, ref.Name, ref.Key)
		}
		return value, ok, nil
	case f.SecretKeyRef != nil:
		ref := f.SecretKeyRef
		s, err := from.secret(ctx, pod.Namespace, ref.Name)
		if err != nil {
			return "", false, allowMissing(err, ref.Optional)
		}
		data, ok := s.Data[ref.Key]
		if !ok && !isTrue(ref.Optional) {
			return "", false, fmt.Errorf("secret %s/%s has no key %s", pod.Namespace, ref.Name, ref.Key)
		}
		return string(data), ok, nil
	}
	return "", false, fmt.Errorf("this kind of valueFrom is not supported")
}

// placement is where a pod runs.
type placement struct {
	hostIP, podIP netip.Addr
}

// fieldValue is a value of the downward API, by the field paths that it documents.
func fieldValue(pod *corev1.Pod, path string, place placement) (string, error) {
	if field, key, ok := cutSubscript(path); ok {
		switch field {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return place.hostIP.String(), nil
	case "status.podIP", "status.podIPs":
		return place.podIP.String(), nil
	}
	return "", fmt.Errorf("field path %q is not supported", path)
}

// cutSubscript splits metadata.labels['key'].
func cutSubscript(path string) (field, key string, ok bool) {
	field, rest, ok := strings.Cut(path, "['")
	if !ok || !strings.HasSuffix(rest, "']") {
		return "", "", false
	}
	return field, strings.TrimSuffix(rest, "']"), true
}

// formatMap writes labels or annotations as a downward API file has them.
func formatMap(m map[string]string) string {
	var b strings.Builder
	for _, k := range sortedKeys(m) {
		fmt.Fprintf(&b, "%s=%q\n", k, m[k])
	}
	return b.String()
}

// resourceValue is a container's limit or request, divided and rounded up as the downward API does.
func resourceValue(c *corev1.Container, ref *corev1.ResourceFieldSelector) (string, error) {
	kind, name, _ := strings.Cut(ref.Resource, ".")
	list := c.Resources.Requests
	if kind == "limits" {
		list = c.Resources.Limits
	}
	quantity, ok := list[corev1.ResourceName(name)]
	if !ok {
		return "", fmt.Errorf("container %s sets no %s", c.Name, ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	// In thousandths, for a CPU divisor may be 1m.
	value, unit := big.NewInt(quantity.MilliValue()), big.NewInt(divisor.MilliValue())
	value.Add(value, unit).Sub(value, big.NewInt(1)).Div(value, unit)
	return value.String(), nil
}

// serviceEnv adds the variables that stand for the services of the pod's namespace (none where enableServiceLinks is
// false) and for the kubernetes service.
func serviceEnv(env *environment, services []*corev1.Service, api netip.AddrPort) {
	if api.IsValid() {
		serviceVariables(env, "kubernetes", api.Addr().String(), []corev1.ServicePort{
			{Name: "https", Port: int32(api.Port()), Protocol: corev1.ProtocolTCP},
		})
	}
	services = slices.Clone(services)
	sort.Slice(services, func(i, j int) bool { return services[i].Name < services[j].Name })
	for _, s := range services {
		if s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone && len(s.Spec.Ports) > 0 {
			serviceVariables(env, s.Name, s.Spec.ClusterIP, s.Spec.Ports)
		}
	}
}

func serviceVariables(env *environment, name, ip string, ports []corev1.ServicePort) {
	upper := func(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }
	prefix := upper(name)
	env.set(prefix+"_SERVICE_HOST", ip)
	env.set(prefix+"_SERVICE_PORT", strconv.Itoa(int(ports[0].Port)))
	for _, p := range ports {
		if p.Name != "" {
			env.set(prefix+"_SERVICE_PORT_"+upper(p.Name), strconv.Itoa(int(p.Port)))
		}
	}
	for i, p := range ports {
		protocol := strings.ToLower(string(p.Protocol))
		if protocol == "" {
			protocol = "tcp"
		}
		url := fmt.Sprintf("%s://%s", protocol, netHostPort(ip, int(p.Port)))
		if i == 0 {
			env.set(prefix+"_PORT", url)
		}
		port := fmt.Sprintf("%s_PORT_%d_%s", prefix, p.Port, strings.ToUpper(protocol))
		env.set(port, url)
		env.set(port+"_PROTO", protocol)
		env.set(port+"_PORT", strconv.Itoa(int(p.Port)))
		env.set(port+"_ADDR", ip)
	}
}

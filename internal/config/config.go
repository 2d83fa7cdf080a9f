// Package config owns the configuration files of the three parts: one YAML file each (JSON is YAML), read strictly,
// validated as a whole, then passed on as one immutable value. docs/configuration.md documents every key.
//
// It reads files and nothing else; the part that uses a key defines its meaning.
package config

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	yamlstream "go.yaml.in/yaml/v2"
	"k8s.io/apimachinery/pkg/util/validation"
	strictjson "sigs.k8s.io/json"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/volume"
)

type validator interface {
	// setDefaults sets the defaults that must be set before the file is read, because the file may explicitly set them to
	// zero values (false, 0, 0s), which are values, or refused. Only empty text is no value.
	setDefaults()
	// complete fills in the other defaults, then reports every invalid field.
	complete(*problems)
}

// Load reads and validates the configuration file of one part: Load[Exporter](path).
// The error names the file and every offending field.
func Load[T any, P interface {
	*T
	validator
}](path string) (*T, error) {
	data, err := volume.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	c, err := Parse[T, P](data)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse is Load for a file's content. It fails for an unknown key, and with all invalid values.
func Parse[T any, P interface {
	*T
	validator
}](data []byte) (*T, error) {
	text, err := JSON(data)
	if err != nil {
		return nil, err
	}
	if tool := originalOf(text); tool != "" {
		return nil, fmt.Errorf("this is a configuration file of %s: run semaphorectl migrate FILE, which makes "+
			"RemoteClusters of it; docs/migrating.md has the rest", tool)
	}
	c := new(T)
	P(c).setDefaults()
	// Keys are case-sensitive: otherwise a file with both "cluster" and "Cluster" would set one field twice.
	unknown, err := strictjson.UnmarshalStrict(text, c)
	if err != nil {
		return nil, ExplainType(err)
	}
	p := problems(unknown)
	P(c).complete(&p)
	if err := errors.Join(p...); err != nil {
		return nil, err
	}
	return c, nil
}

// originalOf returns the original tool that a file belongs to; empty for none.
func originalOf(text []byte) string {
	var keys map[string]json.RawMessage
	if json.Unmarshal(text, &keys) != nil {
		return ""
	}
	switch {
	case keys["localCluster"] != nil || keys["remoteClusters"] != nil:
		return "semaphore-service-mirror"
	case keys["local"] != nil && keys["remotes"] != nil:
		return "semaphore-wireguard"
	}
	return ""
}

// checkOneDocument refuses further YAML documents after the first one, because nothing would read them.
func checkOneDocument(data []byte) error {
	documents := yamlstream.NewDecoder(bytes.NewReader(data))
	for have := 0; ; {
		var document any
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if document != nil {
			have++
		}
		if have > 1 {
			return errors.New("the file holds several YAML documents: put all keys into one, without \"---\" between them")
		}
	}
}

// ExplainType returns the error with the position of a value of the wrong type, and the expected type in YAML's terms
// instead of Go's; any other error as it is.
func ExplainType(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	if wrong.Field == "" {
		return fmt.Errorf("found %s at the top of the file, want keys with values", wrong.Value)
	}
	want := map[reflect.Kind]string{
		reflect.String: "text (in quotes, where it looks like something else)", reflect.Bool: "true or false",
		reflect.Slice: "a list", reflect.Struct: "keys with values",
	}[wrong.Type.Kind()]
	if want == "" {
		want = "a number that fits (" + wrong.Type.String() + ")"
	}
	return fmt.Errorf("%s: found %s, want %s", wrong.Field, wrong.Value, want)
}

type problems []error

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
}

// addEach adds a problem for each fault of a value, as package validation returns them.
func (p *problems) addEach(field string, faults []string, format string, args ...any) {
	for _, fault := range faults {
		p.add(field, "%s: %s", fmt.Sprintf(format, args...), fault)
	}
}

// Feature is one of the three features of semaphore; each works without the others.
type Feature string

const (
	Encryption Feature = "encryption"
	Services   Feature = "services"
	Policy     Feature = "policy"
)

// Features is a set of features. A file that names none means all.
type Features []Feature

func (fs Features) Has(f Feature) bool { return slices.Contains(fs, f) }

func (fs *Features) complete(p *problems, field string) {
	if *fs == nil {
		*fs = Features{Encryption, Services, Policy}
	}
	if len(*fs) == 0 {
		p.add(field, "none: name at least one of encryption, services, policy, or leave the key out for all")
	}
	for i, f := range *fs {
		if f != Encryption && f != Services && f != Policy {
			p.add(fmt.Sprintf("%s[%d]", field, i), "%q is no feature; use encryption, services, policy", f)
		}
	}
}

// TLS configures where a part gets its own certificate and the roots of its peers: from files, which are read again
// when they change, or from a SPIFFE Workload API.
type TLS struct {
	// CertFile and KeyFile are the part's certificate (with intermediates) and key, PEM. The certificate has one SPIFFE
	// ID.
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
	// BundleDir holds one file of root certificates for each cluster: CLUSTER.pem.
	BundleDir string `json:"bundleDir"`
	// WorkloadAPI is the socket of a Workload API, such as a SPIRE agent's, as a URI: unix:///run/spire/agent.sock. It
	// replaces the files.
	WorkloadAPI string `json:"workloadAPI"`
}

func (t *TLS) complete(p *problems, field string) {
	if t.WorkloadAPI != "" {
		checkWorkloadAPI(p, field+".workloadAPI", t.WorkloadAPI)
		refuseReplaced(p, field+".certFile", t.CertFile, field+".workloadAPI")
		refuseReplaced(p, field+".keyFile", t.KeyFile, field+".workloadAPI")
		refuseReplaced(p, field+".bundleDir", t.BundleDir, field+".workloadAPI")
		return
	}
	const dir = "/etc/semaphore/"
	orDefault(&t.CertFile, dir+"tls/tls.crt")
	orDefault(&t.KeyFile, dir+"tls/tls.key")
	orDefault(&t.BundleDir, dir+"bundles")
}

func checkWorkloadAPI(p *problems, field, address string) {
	// A Workload API hands out keys to every process that reaches it, so it must not be on a network.
	if path, ok := strings.CutPrefix(address, "unix://"); !ok || !filepath.IsAbs(path) || filepath.Clean(path) != path {
		p.add(field, "%q: use the URI of a unix socket, such as \"unix:///run/spire/agent.sock\"", address)
	}
}

func refuseReplaced(p *problems, field, value, other string) {
	if value != "" {
		p.add(field, "%q is given, and %s too: certificates come from one of them, take the other out", value, other)
	}
}

// Kube configures how a part reaches the cluster's apiserver.
type Kube struct {
	// KubeConfigPath is a kubeconfig file; empty for the ServiceAccount of the pod, or for RemoteAPIURL.
	KubeConfigPath string `json:"kubeConfigPath"`
	// RemoteAPIURL is the https URL of another cluster's apiserver, and RemoteSATokenPath a file with the token of a
	// ServiceAccount there, which is read again when it changes.
	RemoteAPIURL      string `json:"remoteAPIURL"`
	RemoteSATokenPath string `json:"remoteSATokenPath"`
	// RemoteCAURL is the URL from which the root certificates of that apiserver are fetched at the start, PEM. It must
	// be https, verified by the system's roots, unless RemoteCAHash is set. If empty, the system's roots verify the
	// apiserver.
	RemoteCAURL string `json:"remoteCAURL"`
	// RemoteCAHash is "sha256:" and the SHA-256 of a root's public key in hex, as in `kubeadm join`.
	RemoteCAHash string `json:"remoteCAHash"`
	// RemoteCAPath is a file with the root certificates of that apiserver, PEM, in place of RemoteCAURL.
	RemoteCAPath string `json:"remoteCAPath"`
	// QPS limits this client's requests per second. The default exceeds what an apiserver on a small machine handles from
	// the few writers of a part, so that the writers are the limit. With client-go's default of 5, a thousand services
	// would take a quarter of an hour. The apiserver's flow schemas divide its time among its clients.
	QPS float32 `json:"qps"`
}

// Own returns the configuration for the cluster in which the pod runs, whatever cluster k names.
func (k Kube) Own() Kube { return Kube{QPS: k.QPS} }

func (k *Kube) checkRemote(p *problems, field string) {
	isURL := func(name, value string, schemes ...string) {
		u, err := url.Parse(value)
		if err != nil || u.Host == "" || u.User != nil || !slices.Contains(schemes, u.Scheme) {
			p.add(field+"."+name, "%q: use a URL that begins with %s://, without a user", value,
				strings.Join(schemes, ":// or "))
		}
	}
	if k.RemoteAPIURL == "" {
		for _, key := range [][2]string{{"remoteSATokenPath", k.RemoteSATokenPath}, {"remoteCAURL", k.RemoteCAURL},
			{"remoteCAHash", k.RemoteCAHash}, {"remoteCAPath", k.RemoteCAPath}} {
			if key[1] != "" {
				p.add(field+"."+key[0], "it is used with remoteAPIURL only: set that, or take this out")
			}
		}
		return
	}
	isURL("remoteAPIURL", k.RemoteAPIURL, "https")
	if k.KubeConfigPath != "" {
		p.add(field+".kubeConfigPath", "remoteAPIURL is given too: take one of them out")
	}
	if k.RemoteSATokenPath == "" {
		p.add(field+".remoteSATokenPath", "none: name the file with the token for %s", k.RemoteAPIURL)
	}
	switch {
	case k.RemoteCAPath != "" && (k.RemoteCAURL != "" || k.RemoteCAHash != ""):
		p.add(field+".remoteCAPath", "remoteCAURL or remoteCAHash is given too: the file proves itself, take the others out")
	case k.RemoteCAHash == "" && k.RemoteCAURL != "":
		isURL("remoteCAURL", k.RemoteCAURL, "https")
	case k.RemoteCAURL != "":
		isURL("remoteCAURL", k.RemoteCAURL, "https", "http")
	case k.RemoteCAHash != "":
		p.add(field+".remoteCAHash", "it is the hash of what remoteCAURL has: set that, too")
	}
	if digest, ok := strings.CutPrefix(k.RemoteCAHash, "sha256:"); k.RemoteCAHash != "" {
		if raw, err := hex.DecodeString(digest); !ok || err != nil || len(raw) != sha256.Size {
			p.add(field+".remoteCAHash", "%q: use sha256: and 64 hex digits", k.RemoteCAHash)
		}
	}
}

func (k *Kube) complete(p *problems, field string) {
	k.checkRemote(p, field)
	if k.QPS <= 0 || k.QPS > maxQPS {
		p.add(field+".qps", "%v: use a number of requests a second above 0, up to %d", k.QPS, maxQPS)
	}
}

const (
	defaultQPS = 1_000
	// maxQPS exceeds what an apiserver can serve.
	maxQPS = 100_000
)

// Duration is a Go duration such as "25s".
type Duration struct {
	time.Duration
	// invalid is the file's text in place of a duration: a decoder does not know the field's name, so check reports it.
	invalid string
}

// UnmarshalJSON implements json.Unmarshaler. It never fails: check reports an invalid duration.
func (d *Duration) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	*d = Duration{}
	text, err := strconv.Unquote(string(data))
	if err == nil {
		d.Duration, err = time.ParseDuration(text)
	}
	if err != nil {
		d.invalid = string(data)
	}
	return nil
}

// check adds a problem if there is no duration, or one that is not right; then use says which is.
func (d *Duration) check(p *problems, field string, right bool, use string, args ...any) {
	switch {
	case d.invalid != "":
		p.add(field, "%s is no duration: write it as text with a unit, such as \"25s\"", d.invalid)
	case !right:
		p.add(field, "%s: use %s", d, fmt.Sprintf(use, args...))
	}
}

// MarshalJSON implements json.Marshaler, and never fails.
func (d Duration) MarshalJSON() ([]byte, error) { return []byte(strconv.Quote(d.String())), nil }

// ClusterName returns an error if a cluster's name is invalid, and names the fault.
func ClusterName(name string) error {
	if !naming.IsClusterName(name) {
		return fmt.Errorf("%q is no cluster name: use 1 to %d lower-case letters, digits, '-' and '.', such as \"c1\" or "+
			"\"eu-1.example.com\"", name, naming.MaxClusterName)
	}
	return nil
}

func checkCluster(p *problems, field, name string) {
	if err := ClusterName(name); err != nil {
		p.add(field, "%v", err)
	}
}

func checkListen(p *problems, field, address string) {
	if address == "" {
		return
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		p.add(field, "%q: use [host]:port, such as \":8080\"", address)
		return
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		p.add(field, "port %q: use a number from 0 to 65535", port)
	}
}

// checkLoopback refuses addresses that are reachable from outside the host or pod. An empty address is accepted.
func checkLoopback(p *problems, field, address string) {
	if address == "" {
		return
	}
	checkListen(p, field, address)
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		p.add(field, "%q is not on loopback: use 127.0.0.1:8085; semaphorectl status --web reaches it", address)
	}
}

func checkDial(p *problems, field, address string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		p.add(field, "%q: use host:port, such as \"broker.example.org:8443\"", address)
		return
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		p.add(field, "port %q: use a number from 1 to 65535", port)
	}
}

func parsePrefixes(p *problems, field string, texts []string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(texts))
	for i, text := range texts {
		field := fmt.Sprintf("%s[%d]", field, i)
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			p.add(field, "%q is no CIDR, such as \"10.2.0.0/16\"", text)
		case prefix.Addr().Is4In6():
			p.add(field, "%s is IPv4 written as IPv6: write it as IPv4", prefix)
		case prefix != prefix.Masked():
			p.add(field, "%s has bits set outside its mask: write %s", text, prefix.Masked())
		case prefix.Bits() == 0:
			p.add(field, "%s is everything: name the subnet that the cluster's pods have", text)
		default:
			out = append(out, prefix)
		}
	}
	return out
}

// maxLabelDomains bounds the watches of pods, one for each domain, and the labels of sets.
const maxLabelDomains = 4

func completeLabelDomains(p *problems, all *[]string) {
	if *all == nil {
		*all = []string{naming.DefaultLabelDomain}
	}
	if len(*all) == 0 {
		p.add("labelDomains", "none: name at least one, or leave the key out for %s", naming.DefaultLabelDomain)
	}
	if len(*all) > maxLabelDomains {
		p.add("labelDomains", "%d, and %d is the most", len(*all), maxLabelDomains)
	}
	for i, domain := range *all {
		p.addEach(fmt.Sprintf("labelDomains[%d]", i), validation.IsDNS1123Subdomain(domain),
			"%q is no DNS name, such as \"semaphore.uw.systems\"", domain)
	}
	refuseTwice(p, "labelDomains", *all)
}

func orDefault[T comparable](value *T, otherwise T) { *value = cmp.Or(*value, otherwise) }

package remotes

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// remoteOf converts the spec of a remote cluster to the broker's configuration, without defaults. An error names the
// field.
func remoteOf(name string, spec *v1alpha1.RemoteClusterSpec) (config.Remote, error) {
	r := config.Remote{
		Name: name, PodSubnets: As[string](spec.PodSubnets), NodeSubnets: As[string](spec.NodeSubnets),
		ServicePrefix: spec.ServicePrefix,
		Encryption:    config.Strictness(spec.Encryption), Size: config.Size(spec.Size),
	}
	var errs []error
	if w := spec.WireGuard; w != nil {
		r.WireGuard = config.WireGuard{
			ListenPort: uint16(w.ListenPort), MTU: int(w.MTU), AddressFamily: config.Family(w.AddressFamily),
		}
		if w.ProbePort != nil {
			r.WireGuard.ProbePort = new(uint16(*w.ProbePort))
		}
		var err error
		if r.WireGuard.PersistentKeepalive, err = duration(w.PersistentKeepalive); err != nil {
			errs = append(errs, fmt.Errorf("spec.wireguard.persistentKeepalive: %w", err))
		}
		if r.WireGuard.KeyMaxAge, err = duration(w.KeyMaxAge); err != nil {
			errs = append(errs, fmt.Errorf("spec.wireguard.keyMaxAge: %w", err))
		}
	}
	if l := spec.Limits; l != nil {
		from, to := reflect.ValueOf(l).Elem(), reflect.ValueOf(&r.Limits).Elem()
		for i := range from.NumField() { // the fields have one name in both
			to.FieldByName(from.Type().Field(i).Name).SetInt(from.Field(i).Int())
		}
	}
	return r, errors.Join(errs...)
}

// As returns texts as texts of another type.
func As[To, From ~string](texts []From) (all []To) {
	for _, t := range texts {
		all = append(all, To(t))
	}
	return all
}

func duration(text v1alpha1.Duration) (d config.Duration, err error) {
	if text != "" {
		d.Duration, err = time.ParseDuration(string(text))
	}
	return d, err
}

// ExportRules returns those of a spec, with selectors parsed. An error names the field.
func ExportRules(spec *v1alpha1.RemoteClusterSpec) ([]ExportRule, error) {
	if spec.Export == nil {
		return nil, nil
	}
	var rules []ExportRule
	var errs []error
	for i, r := range spec.Export.Rules {
		rule := ExportRule{Features: As[config.Feature](r.Kinds), Namespaces: r.Namespaces,
			Offers: r.Action == v1alpha1.Offer}
		if r.Selector != nil {
			selector, err := metav1.LabelSelectorAsSelector(r.Selector)
			if err != nil {
				errs = append(errs, fmt.Errorf("spec.export.rules[%d].selector: %w", i, err))
			}
			rule.Selector = selector
		}
		rules = append(rules, rule)
	}
	return rules, errors.Join(errs...)
}

// ExportRule offers some Services and pods to one cluster, or withholds them.
type ExportRule struct {
	// Features whose objects the rule matches: services or policy; all if empty.
	Features config.Features
	// Namespaces that the rule matches; all if empty.
	Namespaces []string
	// Selector of labels that the rule matches; all if nil.
	Selector labels.Selector
	// Offers is false if the rule withholds them.
	Offers bool
}

func (r ExportRule) Matches(feature config.Feature, namespace string, set labels.Set) bool {
	return (len(r.Features) == 0 || r.Features.Has(feature)) &&
		(len(r.Namespaces) == 0 || slices.Contains(r.Namespaces, namespace)) &&
		(r.Selector == nil || r.Selector.Matches(set))
}

// checkBundle names the fault of the text of root certificates, which may be empty.
func checkBundle(text string) error {
	if text == "" {
		return nil
	}
	found := 0
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		if _, err := x509.ParseCertificate(block.Bytes); block.Type != "CERTIFICATE" || err != nil {
			return fmt.Errorf("spec.trustBundle: PEM block %d is no certificate: use what semaphorectl pki bundle prints",
				found+1)
		}
		found++
	}
	if found == 0 {
		return errors.New("spec.trustBundle: no certificate: use what semaphorectl pki bundle prints for the remote cluster")
	}
	return nil
}

func SameExport(a, b *v1alpha1.Export) bool { return apiequality.Semantic.DeepEqual(a, b) }

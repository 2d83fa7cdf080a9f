package report

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// This file writes the conditions of ServiceExports (KEP-1645) in the exporter's own cluster: Valid, whether there is a
// Service that can be exported; Ready, whether the own broker accepted it, with the answers of other clusters;
// Conflict, in which points other exports of the same name differ.
//
// It writes the status when its meaning changes. A broker's last answer about an object counts until the next one, so
// that a stream that breaks and returns repeatedly changes no condition.

// Broker is the publisher to one broker.
type Broker interface {
	// Verdict returns the broker's objection to an object at a revision, empty for none; known is false while the
	// broker has not answered.
	Verdict(key catalog.Key, revision uint64) (objection string, known bool)
	// VerdictVersion changes whenever the result of Verdict or Conflict may change.
	VerdictVersion() uint64
	// Conflict returns the reasons of the condition Conflict, and a sentence.
	Conflict(key catalog.Key) (reasons []string, message string)
}

// versions are the versions of offers, and of each broker's verdicts. Their sum would stay the same where a broker goes
// and the offers change.
func versions(c *catalog.Catalog, brokers map[string]Broker) map[string]uint64 {
	all := map[string]uint64{"": c.OffersVersion()}
	for cluster, b := range brokers {
		all[cluster] = b.VerdictVersion()
	}
	return all
}

func valid(x catalog.ServiceExport) bool { return x.Valid == mcsv1beta1.ServiceExportReasonValid }

// Verdict returns the answer of a cluster's broker about one object; known is false if there is none.
type Verdict func(cluster string) (objection string, known bool)

// Conflict lists how other exports of the same name differ.
type Conflict struct {
	Reasons []string
	Message string
}

// unpublished is the message where no broker compares the exports of clusters.
const unpublished = "the exporter does not publish to the broker of its own cluster: set localBroker in its " +
	"configuration"

// conditionsOf returns the conditions of a ServiceExport in the cluster own; published means that the own broker
// receives the exports. known is false while a broker that receives them has not answered; conditions that depend on
// the own one are then left out, or pending.
func conditionsOf(x catalog.ServiceExport, own string, published bool, verdict Verdict,
	conflict func() Conflict) (all []metav1.Condition, known bool) {
	add := func(t mcsv1beta1.ServiceExportConditionType, status bool, reason, message string) {
		c := metav1.Condition{Type: string(t), Status: metav1.ConditionFalse, Reason: reason, Message: truncate(message),
			ObservedGeneration: x.Generation}
		if status {
			c.Status = metav1.ConditionTrue
		}
		all = append(all, c)
	}
	if !valid(x) {
		add(mcsv1beta1.ServiceExportConditionValid, false, string(x.Valid), x.Reason)
		add(mcsv1beta1.ServiceExportConditionReady, false, string(mcsv1beta1.ServiceExportReasonPending),
			"nothing is exported: see the condition Valid")
		return all, true
	}
	add(mcsv1beta1.ServiceExportConditionValid, true, string(mcsv1beta1.ServiceExportReasonValid),
		"the Service can be exported")
	ready := func(status bool, reason mcsv1beta1.ServiceExportConditionReason, message string) {
		add(mcsv1beta1.ServiceExportConditionReady, status, string(reason), message)
	}
	switch {
	case !published:
		ready(false, mcsv1beta1.ServiceExportReasonFailed, unpublished)
		return all, true
	case x.Offer == nil || len(x.Offer.To) == 0:
		reason := "the exporter has not read the Service yet"
		if x.Offer != nil {
			reason = "the Service is not exported: " + x.Offer.Reason
		}
		ready(false, mcsv1beta1.ServiceExportReasonFailed, reason)
		return all, x.Offer != nil
	}
	objection, known := verdict(own)
	switch {
	case !known:
		ready(false, mcsv1beta1.ServiceExportReasonPending, "the broker of the own cluster has not confirmed it yet")
		return all, false
	case objection != "":
		ready(false, mcsv1beta1.ServiceExportReasonFailed, "the broker of the own cluster: "+objection)
	default:
		var message string
		message, known = others(x, own, verdict)
		ready(true, mcsv1beta1.ServiceExportReasonExported, message)
	}
	if c := conflict(); len(c.Reasons) > 0 {
		add(mcsv1beta1.ServiceExportConditionConflict, true, strings.Join(c.Reasons, ","), c.Message)
	} else {
		add(mcsv1beta1.ServiceExportConditionConflict, false, string(mcsv1beta1.ServiceExportReasonNoConflicts),
			"no export of another cluster differs")
	}
	return all, known
}

// others returns which other clusters accepted a Service, which have not answered, and which refuse it and why. all
// means that all have answered.
func others(x catalog.ServiceExport, own string, verdict Verdict) (text string, all bool) {
	accepted, unconfirmed, parts := answers(x.Offer.To, own, verdict)
	if len(unconfirmed) > 0 {
		parts = append([]string{"not confirmed yet by " + strings.Join(unconfirmed, ", ")}, parts...)
	}
	if len(accepted) > 0 {
		parts = append([]string{"exported to " + strings.Join(accepted, ", ")}, parts...)
	}
	if len(parts) == 0 {
		text := "exported to no other cluster"
		if x.Offer.Reason != "" {
			text += ": " + x.Offer.Reason
		}
		parts = append(parts, text)
	}
	if x.Offer.IgnoredSettings != "" {
		parts = append(parts, x.Offer.IgnoredSettings)
	}
	return strings.Join(parts, "; "), len(unconfirmed) == 0
}

// answers sorts clusters, without one, by their answers: those that accept, those that have not answered, and
// objections, a sentence each.
func answers(to []string, without string, verdict Verdict) (accepted, unconfirmed, objections []string) {
	for _, cluster := range to {
		if cluster == without {
			continue
		}
		objection, known := verdict(cluster)
		switch {
		case !known:
			unconfirmed = append(unconfirmed, cluster)
		case objection != "":
			objections = append(objections, fmt.Sprintf("cluster %s: %s", cluster, objection))
		default:
			accepted = append(accepted, cluster)
		}
	}
	return accepted, unconfirmed, objections
}

// maxMessage is below the limit of a condition's message, 32,768 characters.
const maxMessage = 2048

// truncate bounds a message with text from another cluster.
func truncate(text string) string { return finding.CleanTo(text, maxMessage) }

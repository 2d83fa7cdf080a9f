package report

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// StatusOf returns what a broker reports of a RemoteCluster. link is nil if nothing is accepted from it.
func StatusOf(o remotes.Object, v remotes.Verdict, link *semaphorev1.LinkStatus) v1alpha1.RemoteClusterStatus {
	s := stateOf(o, v, link)
	s.ObservedGeneration = o.Generation
	s.Conditions = append([]metav1.Condition{ready(o, s.Conditions)}, s.Conditions...)
	return s
}

// ready summarizes the broker's conditions of an object, and the exporter's condition, which the object has.
func ready(o remotes.Object, conditions []metav1.Condition) metav1.Condition {
	unreported := metav1.Condition{Type: v1alpha1.ConditionExporting, Status: metav1.ConditionUnknown,
		Reason: string(finding.NotReported), Message: "the exporter of this cluster has not reported yet"}
	if o.Spec.Broker != nil { // else nothing is to be exported, whatever the exporter says
		exporting := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionExporting)
		if exporting == nil || exporting.ObservedGeneration != o.Generation {
			exporting = &unreported
		}
		conditions = append(slices.Clone(conditions), *exporting)
	}
	out := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: o.Generation,
		Reason: string(finding.Ready), Message: finding.Ready.Definition().Meaning}
	for _, c := range conditions {
		if c.Status == metav1.ConditionTrue || finding.Code(c.Reason) == finding.NothingTaken {
			continue
		}
		// The first that is false precedes one that is not known.
		if out.Status == metav1.ConditionTrue || out.Status == metav1.ConditionUnknown && c.Status == metav1.ConditionFalse {
			out.Status, out.Reason, out.Message = c.Status, c.Reason, c.Type+": "+c.Message
		}
	}
	return out
}

func stateOf(o remotes.Object, v remotes.Verdict, link *semaphorev1.LinkStatus) v1alpha1.RemoteClusterStatus {
	var s v1alpha1.RemoteClusterStatus
	condition := func(kind string, is metav1.ConditionStatus, reason finding.Code, message string) {
		s.Conditions = append(s.Conditions, metav1.Condition{
			Type: kind, Status: is, ObservedGeneration: o.Generation, Reason: string(reason), Message: message,
		})
	}
	accepted := metav1.ConditionFalse
	if v.Accepted() {
		accepted = metav1.ConditionTrue
	}
	condition(v1alpha1.ConditionAccepted, accepted, v.Reason, v.Message)
	if v.InEffect != nil {
		s.ListenPort = int32(v.InEffect.ListenPort)
	}
	if link == nil {
		reason, message := finding.NothingTaken, "spec.podSubnets is absent: nothing is accepted from the remote cluster"
		if v.InEffect == nil {
			reason, message = finding.NotInEffect, "the object is not in effect"
		}
		condition(v1alpha1.ConditionConnected, metav1.ConditionFalse, reason, message)
		return s
	}
	switch {
	case link.GetConnected():
		condition(v1alpha1.ConditionConnected, metav1.ConditionTrue, finding.Connected,
			"the exporter of the remote cluster is connected from "+link.GetAddress())
	case link.GetLastHeard() == nil:
		condition(v1alpha1.ConditionConnected, metav1.ConditionFalse, finding.NeverConnected,
			because("the exporter of the remote cluster has not connected yet", link))
	default:
		condition(v1alpha1.ConditionConnected, metav1.ConditionFalse, finding.Disconnected,
			because("the exporter of the remote cluster is not connected; what it exported stays", link))
	}
	if at := link.GetLastHeard(); at != nil {
		heard := metav1.NewTime(at.AsTime()).Rfc3339Copy()
		s.LastHeard = &heard
	}
	s.Objects = &v1alpha1.Objects{}
	for _, k := range link.GetKinds() {
		switch n := int32(k.GetObjects()); k.GetKind() {
		case semaphorev1.Kind_KIND_NODE:
			s.Objects.Nodes = n
		case semaphorev1.Kind_KIND_SERVICE:
			s.Objects.Services = n
		case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
			s.Objects.EndpointSlices = n
		case semaphorev1.Kind_KIND_SET_MEMBER:
			s.Objects.SetMembers = n
		}
		s.Refused += int32(k.GetRefused())
		s.Retained += int32(k.GetRetained())
	}
	is, reason, message := healthOf(link, &s)
	condition(v1alpha1.ConditionHealthy, is, reason, message)
	return s
}

// healthOf returns the condition Healthy of a remote with the numbers of a status.
func healthOf(link *semaphorev1.LinkStatus, s *v1alpha1.RemoteClusterStatus) (is metav1.ConditionStatus,
	reason finding.Code, message string) {
	switch {
	case link.GetRefusedSourceId() != "":
		return metav1.ConditionFalse, finding.SourceRefused, fmt.Sprintf(
			"a second cluster, whose namespace kube-system has the UID %s, says that it is this remote, and is refused: see "+
				"semaphorectl status", finding.CleanTo(link.GetRefusedSourceId(), maxBecause))
	case s.Retained > 0:
		return metav1.ConditionFalse, finding.Retained,
			"the brake retains objects that the remote cluster withdrew: see semaphorectl status"
	case s.Refused > 0:
		return metav1.ConditionFalse, finding.Refused,
			"objects of the remote cluster are refused: see semaphorectl status"
	case !link.GetConnected() && link.GetLastHeard() == nil: // by this leader
		return metav1.ConditionUnknown, finding.NeverConnected,
			"the objects of the remote cluster are not known until its exporter connects"
	case !slices.ContainsFunc(link.GetKinds(), (*semaphorev1.KindStatus).GetComplete):
		return metav1.ConditionUnknown, finding.NotReported,
			"the objects of the remote cluster are not known until its exporter has sent them"
	}
	return metav1.ConditionTrue, finding.Healthy, "no object is refused or retained"
}

// maxBecause bounds what a condition quotes of the other cluster, bytes.
const maxBecause = 512

// because returns a sentence with the reason for the end of the last stream, if it is known.
func because(sentence string, link *semaphorev1.LinkStatus) string {
	if last := link.GetLastError(); last != "" {
		return sentence + ": " + finding.CleanTo(last, maxBecause)
	}
	return sentence
}

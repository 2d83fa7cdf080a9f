package streams_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func object(name string) *semaphorev1.Object {
	return &semaphorev1.Object{
		Key:  &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SET_MEMBER, Namespace: "shop", Name: name},
		Spec: &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{PodUid: name, Ips: []string{"10.2.0.1"}}},
	}
}

func TestTheOrderOfChangesDoesNotCount(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n = 200
	var want streams.Digest
	for i := range n / 2 {
		want.Add(streams.DigestOf(object(fmt.Sprint(i))))
	}
	var have streams.Digest
	for _, i := range r.Perm(n) {
		have.Add(streams.DigestOf(object(fmt.Sprint(i))))
	}
	for _, i := range r.Perm(n) {
		if i >= n/2 {
			have.Remove(streams.DigestOf(object(fmt.Sprint(i))))
		}
	}
	if have != want {
		t.Errorf("the same set has the digests %x and %x", have, want)
	}
	have.Remove(streams.DigestOf(object("0")))
	if have == want {
		t.Error("a set without one of its members has the same digest")
	}
}

func TestAnEmptySetIsZeroAgain(t *testing.T) {
	var d streams.Digest
	d.Remove(streams.DigestOf(object("a")))
	d.Add(streams.DigestOf(object("a")))
	if d != (streams.Digest{}) {
		t.Errorf("an empty set has the digest %x", d)
	}
	if got, ok := streams.ParseDigest(d.Bytes()); !ok || got != d {
		t.Error("a digest does not survive a message")
	}
	if _, ok := streams.ParseDigest([]byte("short")); ok {
		t.Error("five bytes are a digest")
	}
}

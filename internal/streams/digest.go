package streams

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"

	"google.golang.org/protobuf/proto"
)

// This file compares the sets of objects at the two ends of a stream without sending them: the digest of a set is the
// sum of those of its members, so that each change costs only that one object.
//
// It is no proof against a sender that chooses the objects, which could search for sets with one sum: a sender that
// lies about its own objects gains nothing that it could not simply send.

const digestSize = sha256.Size

// Digest is the digest of a set of messages; the zero value is that of the empty set. Digests are compared with ==.
type Digest [digestSize]byte

var canonical = proto.MarshalOptions{Deterministic: true}

// DigestOf returns the digest of the set with m alone. It panics on a message that cannot be encoded because of text
// that is not UTF-8: a message from a stream has none.
func DigestOf(m proto.Message) Digest {
	data, err := canonical.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("digest of a message that cannot be encoded: %v", err))
	}
	return sha256.Sum256(data)
}

// ParseDigest reads what Bytes wrote; ok is false for anything else.
func ParseDigest(data []byte) (d Digest, ok bool) {
	if len(data) != digestSize {
		return Digest{}, false
	}
	return Digest(data), true
}

func (d Digest) Bytes() []byte { return d[:] }

// Add adds the members of other, which must not be in the set.
func (d *Digest) Add(other Digest) {
	var carry uint64
	for i := 0; i < digestSize; i += 8 {
		var sum uint64
		sum, carry = bits.Add64(binary.LittleEndian.Uint64(d[i:]), binary.LittleEndian.Uint64(other[i:]), carry)
		binary.LittleEndian.PutUint64(d[i:], sum)
	}
}

// Remove removes the members of other, which must be in the set.
func (d *Digest) Remove(other Digest) {
	var borrow uint64
	for i := 0; i < digestSize; i += 8 {
		var rest uint64
		rest, borrow = bits.Sub64(binary.LittleEndian.Uint64(d[i:]), binary.LittleEndian.Uint64(other[i:]), borrow)
		binary.LittleEndian.PutUint64(d[i:], rest)
	}
}

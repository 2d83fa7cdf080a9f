// Package probe measures how large a packet the path to another node carries. It sends UDP datagrams that must not be
// fragmented, and the node's responder answers each with a small one that states how much arrived. It does not rely on
// ICMP, which firewalls often drop (RFC 4821, RFC 8899).
//
// The result is a hint, within bounds that the caller sets: an answer proves that a packet of that size arrived, and no
// answer proves nothing by itself. A responder answers only addresses that its caller knows, with fewer bytes than it
// received, and at a limited rate, so that it cannot amplify an attack.
//
// It knows nothing of WireGuard except the 32 bytes by which a tunnel packet is larger than the packet inside it. All
// sizes here are those of the packet inside.
//
// It may import no other package of the agent.
package probe

import (
	"encoding/binary"
	"errors"
)

// wrapping is what WireGuard adds to a packet inside a UDP datagram in bytes: a header of 16 and a tag of 16
// (whitepaper, section 5.4.6).
const wrapping = 32

// A probe is a header and as many zeros as it takes; an answer is a header and the number of bytes that arrived.
//
//	0  4 bytes  "SMPH"
//	4  1 byte   version, 1
//	5  1 byte   1 probe, 2 answer
//	6  2 bytes  zero
//	8  8 bytes  id, random, of the probe
//	16 4 bytes  of an answer: bytes of UDP payload that arrived, big endian
const (
	magic       = "SMPH"
	version     = 1
	kindProbe   = 1
	kindAnswer  = 2
	headerSize  = 16
	answerSize  = headerSize + 4
	smallest    = 64 // of a probe: more than its answer
	largestData = 65535
)

var errNotOurs = errors.New("not of this protocol")

// encode writes a message with the length of b.
func encode(b []byte, kind byte, id uint64) {
	clear(b)
	copy(b, magic)
	b[4], b[5] = version, kind
	binary.BigEndian.PutUint64(b[8:], id)
}

// decode reads a message of one kind.
func decode(b []byte, kind byte) (id uint64, err error) {
	if len(b) < headerSize || string(b[:4]) != magic || b[4] != version || b[5] != kind {
		return 0, errNotOurs
	}
	return binary.BigEndian.Uint64(b[8:]), nil
}

// answer writes the answer to a datagram into b, and returns its length; 0 for none.
func answer(b, datagram []byte) int {
	id, err := decode(datagram, kindProbe)
	if err != nil || len(datagram) < smallest {
		return 0
	}
	encode(b[:answerSize], kindAnswer, id)
	binary.BigEndian.PutUint32(b[headerSize:], uint32(len(datagram)))
	return answerSize
}

// arrived reads an answer: the id of its probe, and how many bytes of the probe arrived.
func arrived(b []byte) (id uint64, size int, err error) {
	if id, err = decode(b, kindAnswer); err != nil || len(b) != answerSize {
		return 0, 0, errNotOurs
	}
	return id, int(binary.BigEndian.Uint32(b[headerSize:])), nil
}

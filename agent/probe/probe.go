// Package probe measures how large a packet the path to another node carries: UDP datagrams that must not be fragmented
// go there, and its responder answers each with a small one that says how much arrived. It needs no word of a router's,
// which firewalls like to drop (RFC 4821, RFC 8899).
//
// What is learned is a hint, within bounds that the caller sets: an answer proves that a packet of that size came
// through, and no answer proves nothing by itself. A responder answers only to those whom its caller knows, with less
// than it was sent, and only so often: it is of no use for attacks on others.
//
// It knows nothing of WireGuard but the 32 bytes that a tunnel's packet has over the one it carries, in whose size all
// is said here.
//
// It may import no other package of the agent.
package probe

import (
	"encoding/binary"
	"errors"
)

// wrapping is what WireGuard puts around a packet inside a UDP datagram: a header of 16 bytes and a tag of 16
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

// encode writes a message of the size of b.
func encode(b []byte, kind byte, id uint64) {
	clear(b)
	copy(b, magic)
	b[4], b[5] = version, kind
	binary.BigEndian.PutUint64(b[8:], id)
}

// decode reads a message of a kind.
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

// arrived reads an answer: which probe it is to, and how many bytes of that arrived.
func arrived(b []byte) (id uint64, size int, err error) {
	if id, err = decode(b, kindAnswer); err != nil || len(b) != answerSize {
		return 0, 0, errNotOurs
	}
	return id, int(binary.BigEndian.Uint32(b[headerSize:])), nil
}

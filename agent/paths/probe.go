package paths

import (
	"encoding/binary"
	"errors"
)

// wrapping is WireGuard's addition to a packet inside a UDP datagram in bytes: a header of 16 and a tag of 16
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
	probeMagic   = "SMPH"
	probeVersion = 1
	kindProbe    = 1
	kindAnswer   = 2
	headerSize   = 16
	answerSize   = headerSize + 4
	smallest     = 64 // of a probe: more than its answer
	largestData  = 65535
)

var errNotOurs = errors.New("not of this protocol")

// encodeProbe writes a message with the length of b.
func encodeProbe(b []byte, kind byte, id uint64) {
	clear(b)
	copy(b, probeMagic)
	b[4], b[5] = probeVersion, kind
	binary.BigEndian.PutUint64(b[8:], id)
}

func decodeProbe(b []byte, kind byte) (id uint64, err error) {
	if len(b) < headerSize || string(b[:4]) != probeMagic || b[4] != probeVersion || b[5] != kind {
		return 0, errNotOurs
	}
	return binary.BigEndian.Uint64(b[8:]), nil
}

func probeAnswer(b, datagram []byte) int {
	id, err := decodeProbe(datagram, kindProbe)
	if err != nil || len(datagram) < smallest {
		return 0
	}
	encodeProbe(b[:answerSize], kindAnswer, id)
	binary.BigEndian.PutUint32(b[headerSize:], uint32(len(datagram)))
	return answerSize
}

// arrived reads an answer: the id of its probe, and how many bytes of the probe arrived.
func arrived(b []byte) (id uint64, size int, err error) {
	if id, err = decodeProbe(b, kindAnswer); err != nil || len(b) != answerSize {
		return 0, 0, errNotOurs
	}
	return id, int(binary.BigEndian.Uint32(b[headerSize:])), nil
}

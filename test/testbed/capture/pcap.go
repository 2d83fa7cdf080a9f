//go:build linux

package capture

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Constants of the classic pcap format with nanoseconds, https://www.tcpdump.org/manpages/pcap-savefile.5.html.
const (
	pcapMagic        = 0xa1b23c4d
	pcapMajor        = 2
	pcapMinor        = 4
	linkTypeEthernet = 1
)

// writePCAP writes Ethernet packets as a file for tcpdump -r and Wireshark.
func writePCAP(w io.Writer, packets []Packet) error {
	order := binary.LittleEndian
	var header []byte
	header = order.AppendUint32(header, pcapMagic)
	header = order.AppendUint16(header, pcapMajor)
	header = order.AppendUint16(header, pcapMinor)
	header = order.AppendUint64(header, 0) // time zone and accuracy, which are unused
	header = order.AppendUint32(header, snapLength)
	header = order.AppendUint32(header, linkTypeEthernet)
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("write pcap: %w", err)
	}
	for _, p := range packets {
		var record []byte
		record = order.AppendUint32(record, uint32(p.Time.Unix()))
		record = order.AppendUint32(record, uint32(p.Time.Nanosecond()))
		record = order.AppendUint32(record, uint32(len(p.Data)))
		record = order.AppendUint32(record, uint32(len(p.Data)))
		if _, err := w.Write(append(record, p.Data...)); err != nil {
			return fmt.Errorf("write pcap: %w", err)
		}
	}
	return nil
}

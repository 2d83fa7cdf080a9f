package machine

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestLoadOrder(t *testing.T) {
	// depmod(8) writes a module before the modules that it needs.
	const dependencies = `kernel/lib/crc.ko:
kernel/drivers/virtio/virtio-ring.ko:
kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio-ring.ko
kernel/drivers/virtio/virtio_pci.ko.xz: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio-ring.ko
kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko
kernel/net/9p/9pnet.ko:
`
	order, err := loadOrder(strings.NewReader(dependencies), []string{"virtio_pci", "virtio_ring", "9p"})
	want := []string{
		"kernel/drivers/virtio/virtio-ring.ko", "kernel/drivers/virtio/virtio.ko", "kernel/drivers/virtio/virtio_pci.ko.xz",
		"kernel/net/9p/9pnet.ko", "kernel/fs/9p/9p.ko",
	}
	if err != nil || !slices.Equal(order, want) {
		t.Errorf("%q, %v", order, err)
	}
	if _, err := loadOrder(strings.NewReader(dependencies), []string{"overlay"}); err == nil ||
		!strings.Contains(err.Error(), "overlay") {
		t.Errorf("a module that is not there: %v", err)
	}
}

func TestCPIO(t *testing.T) {
	var out bytes.Buffer
	w := &cpioWriter{w: &out}
	w.directory("dev")
	w.characterDevice("dev/console", 5, 1)
	w.file("init", []byte("hello"))
	w.end()
	testkit.Must(t, w.err)
	// GNU cpio writes the same, except for owners, times and inodes.
	want := "070701" + "00000001" + "000041ed" + "0000000000000000" + "00000001" + "00000000" + "00000000" +
		strings.Repeat("0", 32) + "00000004" + "00000000" + "dev\x00\x00\x00" +
		"070701" + "00000002" + "00002180" + "0000000000000000" + "00000001" + "00000000" + "00000000" +
		strings.Repeat("0", 16) + "0000000500000001" + "0000000c" + "00000000" + "dev/console\x00\x00\x00" +
		"070701" + "00000003" + "000081ed" + "0000000000000000" + "00000001" + "00000000" + "00000005" +
		strings.Repeat("0", 32) + "00000005" + "00000000" + "init\x00\x00" + "hello\x00\x00\x00"
	if got := out.String(); !strings.HasPrefix(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	if out.Len()%4 != 0 {
		t.Errorf("%d bytes, no multiple of 4", out.Len())
	}
}

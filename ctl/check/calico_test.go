package check

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/preflight"
)

func TestJudgeCalico(t *testing.T) {
	pool := func(name, cidr string, edit ...func(*fleet.Pool)) fleet.Pool {
		p := fleet.Pool{Name: name, CIDR: netip.MustParsePrefix(cidr), Disabled: true, DisableBGPExport: true}
		for _, e := range edit {
			e(&p)
		}
		return p
	}
	enabled := func(p *fleet.Pool) { p.Disabled, p.DisableBGPExport, p.NATOutgoing = false, false, true }
	exported := func(p *fleet.Pool) { p.DisableBGPExport = false }
	own := pool("own", "10.1.0.0/16", enabled)
	c2 := []preflight.Remote{{Name: "c2", Pods: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}}}
	for name, test := range map[string]struct {
		facts      Calico
		want, says string
	}{
		"as it should be": {Calico{Pools: []fleet.Pool{own, pool("c2", "10.2.0.0/16")}}, "PoolsHarmless", ""},
		"announced": {Calico{Pools: []fleet.Pool{own, pool("c2", "10.2.0.0/16", exported)}}, "WARNING:PoolExported",
			`kubectl patch ippools.crd.projectcalico.org c2 --type merge -p '{"spec":{"disableBGPExport":true}}'`},
		"announced, a part": {Calico{Pools: []fleet.Pool{own, pool("c2", "10.2.0.0/16"),
			pool("c2a", "10.2.4.0/24", exported)}}, "WARNING:PoolExported", "IPPool c2a"},
		"given out": {Calico{Pools: []fleet.Pool{own, pool("c2", "10.2.0.0/16", enabled)}}, "ERROR:PoolEnabled",
			`'{"spec":{"disabled":true,"disableBGPExport":true}}'`},
		"given out, and more": {Calico{Pools: []fleet.Pool{pool("wide", "10.0.0.0/8", enabled)}}, "ERROR:PoolEnabled",
			"put pools in its place"},
		"no pool": {Calico{Pools: []fleet.Pool{own}}, "WARNING:PoolMissing", "manageIPPools: true"},
		"no pool, no masquerade": {Calico{Pools: []fleet.Pool{pool("own", "10.1.0.0/16",
			func(p *fleet.Pool) { p.Disabled = false })}}, "PoolsHarmless", ""},
		"strict": {Calico{Pools: []fleet.Pool{own, pool("c2", "10.2.0.0/16")}, IPAM: fleet.IPAM{Blocks: true, Strict: true}},
			"PoolsHarmless AffinityStrict", ""},
		"not strict": {Calico{Pools: []fleet.Pool{own, pool("c2", "10.2.0.0/16")}, IPAM: fleet.IPAM{Blocks: true}},
			"PoolsHarmless WARNING:AffinityNotStrict", "calicoctl ipam configure --strictaffinity=true"},
		"not strict, host-local": {Calico{Pools: []fleet.Pool{own, pool("c2", "10.2.0.0/16")}}, "PoolsHarmless", ""},
		"forbidden": {Calico{Err: apierrors.NewForbidden(schema.GroupResource{Resource: "ippools"}, "", nil)},
			"NOT-CHECKED:CalicoNotRead", "forbidden"},
		"down": {Calico{Err: errors.New("refused")}, "WARNING:CalicoUnreadable", "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			test.facts.Remotes, test.facts.PoolResource = c2, "ippools.crd.projectcalico.org"
			found := judgeCalico(test.facts)
			complete(t, found)
			text := ""
			for _, f := range found {
				text += f.Subject + ": " + f.Evidence + "; " + f.Fix + "\n"
			}
			if got := codes(found); got != test.want || !strings.Contains(text, test.says) {
				t.Errorf("%s, not %s with %q:\n%s", got, test.want, test.says, text)
			}
		})
	}
}

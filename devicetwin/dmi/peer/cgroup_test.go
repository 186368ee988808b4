package peer_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin/dmi/peer"
)

func TestPodOfCgroup(t *testing.T) {
	const uid = "0a1b2c3d-1111-2222-3333-444455556666"
	for name, tt := range map[string]struct {
		text, root string
		want       types.UID
		fails      bool
	}{
		"v2, systemd, burstable": {
			text: "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-abc.scope\n", want: uid,
		},
		"v2, systemd, guaranteed": {text: "0::/kubepods.slice/kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-abc.scope\n", want: uid},
		"v2, systemd, init inside": {
			text: "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-abc.scope/init\n", want: uid,
		},
		"v2, cgroupfs, burstable":  {text: "0::/kubepods/burstable/pod" + uid + "/abc\n", want: uid},
		"v2, cgroupfs, guaranteed": {text: "0::/kubepods/pod" + uid + "/abc\n", want: uid},
		"v2, below a root":         {text: "0::/frond.slice/edge/kubepods/besteffort/pod" + uid + "/abc\n", root: "/frond.slice/edge", want: uid},
		"v2, outside the root":     {text: "0::/kubepods/besteffort/pod" + uid + "/abc\n", root: "/frond.slice"},
		"v1, cgroupfs": {
			text: "12:pids:/kubepods/besteffort/pod" + uid + "/abc\n1:name=systemd:/kubepods/besteffort/pod" + uid + "/abc\n0::/system.slice/containerd.service\n", want: uid,
		},
		"v1, systemd": {text: "3:cpu,cpuacct:/kubepods.slice/kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-abc.scope\n", want: uid},
		"v1, two pods": {
			text: "2:cpu:/kubepods/pod" + uid + "/a\n1:pids:/kubepods/podother/a\n", fails: true,
		},
		"a static pod": {text: "0::/kubepods/burstable/poda0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5/abc\n", want: "a0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5"},
		"a pod that makes a group named like another pod's": {
			text: "0::/kubepods/podmine/abc/kubepods/pod" + uid + "/abc\n", want: "mine",
		},
		"the same with systemd": {
			text: "0::/kubepods.slice/kubepods-podmine.slice/cri-containerd-abc.scope/kubepods.slice/kubepods-pod0a1b2c3d_1111.slice\n", want: "mine",
		},
		"a user of the host that makes such a group": {text: "0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid + "/abc\n"},
		"a group below the quality's":                {text: "0::/kubepods.slice/kubepods-burstable.slice/other.slice/kubepods-pod0a1b.slice/x\n"},
		"a group beside the quality's":               {text: "0::/kubepods.slice/other.slice/other-pod0a1b.slice/x\n"},
		"a scope instead of a slice":                 {text: "0::/kubepods.slice/kubepods-pod0a1b.scope/x\n"},
		"a service of the host":                      {text: "0::/system.slice/mapper.service\n"},
		"the root":                                   {text: "0::/\n"},
		"kubepods itself":                            {text: "0::/kubepods.slice\n"},
		"kubepods of cgroupfs itself":                {text: "0::/kubepods/burstable\n"},
		"nothing":                                    {text: ""},
		"no line of this form":                       {text: "hello\n", fails: true},
		"a path with colons":                         {text: "0::/kubepods/poda:b/abc\n", want: "a:b"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := peer.PodOfCgroup(tt.text, tt.root)
			if got != tt.want || (err != nil) != tt.fails {
				t.Errorf("PodOfCgroup = %q, %v; want %q, error %v", got, err, tt.want, tt.fails)
			}
		})
	}
}

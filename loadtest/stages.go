package loadtest

import (
	"context"
	"os"
	"os/exec"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/loadtest/deviceload"
	"github.com/frond-edge/frond/loadtest/logload"
)

// clusterStage is a cluster and the scenarios that run on it.
type clusterStage struct {
	name string
	spec devcluster.Spec
	// reusesCluster continues with the cluster of the previous stage.
	reusesCluster bool
	scenarios     []scenario
}

// missing says what this machine lacks for the stage, "" if nothing.
func (st clusterStage) missing() string {
	switch _, noNft := exec.LookPath("nft"); {
	case st.spec.Runtime == devcluster.Containerd && os.Geteuid() != 0:
		return "real containers need root"
	case st.spec.KubeProxy && noNft != nil:
		return devcluster.ErrMissingNft.Error()
	}
	return ""
}

// allStages lists the stages in order.
func allStages(s Size) []clusterStage {
	spec := func(edges int, runtime devcluster.Runtime) devcluster.Spec {
		return devcluster.Spec{Edges: edges, Cloudcores: 2, Hubs: 3, Runtime: runtime, NoMetrics: true}
	}
	proxied := spec(1, devcluster.Containerd)
	proxied.KubeProxy = true
	hollow := spec(2, devcluster.Hollow)
	plain := spec(1, devcluster.Hollow)
	served := plain
	served.Devices = true
	return []clusterStage{
		{"containerd", spec(1, devcluster.Containerd), false, []scenario{{name: "memory", run: measureMemory}, podStartup(s.Pods, "")}},
		{"services", proxied, true, []scenario{{name: "services", run: measureServices}}},
		{"hollow", hollow, false, []scenario{
			oneUpdate(s.Updates),
			burst(s.Burst, s.Rounds),
			arrival(1, s.Burst, s.Rounds, "31", 2000),
			podStartup(s.Pods, "1000"),
		}},
		{"delivery", hollow, true, []scenario{
			{name: "idle", run: measureIdleLinks},
			takeover(s.Kills),
			firstDelivery(s.First, "2 cloudcores", "894, p90 5000"),
			firstDelivery(s.First, "1 cloudcore", "24, p90 43").byOneCloudcore(),
			burst(s.Slow, s.Rounds).overSlowLink(),
			arrival(1, s.Burst, s.Rounds, "", 0).overSlowLink(),
			catchup(s.CatchUp, 1, min(s.Rounds, 3)),
		}},
		{"attached", hollow, true, []scenario{{name: "attached nodes", run: measureAttached}}},
		{"away", hollow, true, []scenario{catchup(s.CatchUp/10, 10, min(s.Rounds, 3))}},
		{"tunnel", spec(s.LogNodes, devcluster.Hollow), true, []scenario{
			{name: "logs -f", run: func(ctx context.Context, w *environment) error { return logReaders(w).RunShared(ctx) }},
			{name: "logs -f, a tunnel each", run: func(ctx context.Context, w *environment) error { return logReaders(w).RunDirect(ctx) }},
		}},
		{"fan-out", spec(s.FanNodes, devcluster.Hollow), true, []scenario{
			fanout(s.FanNodes, s.FanOut, s.Rounds),
			arrival(s.FanNodes, s.FanOut, s.Rounds, "75", 5000),
		}},
		{"devices", plain, false, []scenario{onDevices("memory without devices", deviceload.MeasureMemoryOff)}},
		{"devices", served, true, []scenario{
			onDevices("memory", deviceload.MeasureMemory),
			onDevices("samples", deviceload.MeasureSamples),
			onDevices("backfill", deviceload.MeasureBackfill),
			onDevices("desired values by MQTT", deviceload.MeasureDelta),
			onDevices("mapper", deviceload.MeasureMapper),
		}},
	}
}

func logReaders(w *environment) *logload.Load {
	return &logload.Load{
		Cluster: w.cluster, Kube: w.kube, Objects: w.objects, Edges: w.edges, Recorder: &w.recorder,
		Readers: w.size.Readers, Lines: w.size.LogLines, First: w.size.First, Collected: w.size.Collected,
	}
}

// onDevices is a scenario of the first gateway's devices.
func onDevices(name string, measure func(context.Context, *deviceload.Load) error) scenario {
	return scenario{name: name, run: func(ctx context.Context, w *environment) error {
		load, err := deviceload.New(deviceload.Environment{
			Cluster: w.cluster, Config: w.config, Kube: w.kube, NATS: w.nc, Objects: w.objects, Acks: w.acks, Recorder: &w.recorder, Edge: w.edges[0],
		}, w.size.Devices)
		if err != nil {
			return err
		}
		return measure(ctx, load)
	}}
}

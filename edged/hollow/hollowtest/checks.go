package hollowtest

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/frond-edge/frond/test/kit"
)

// serverScript is a script that runs until it is stopped, and ends with 0 on SIGTERM, in a real shell too.
const serverScript = "trap 'exit 0' TERM; while true; do sleep 0.1; done"

func checkNode(t *testing.T, b Target) {
	version, err := b.Runtime.Version(t.Context(), &runtimeapi.VersionRequest{})
	if err != nil || version.GetRuntimeApiVersion() != "v1" || version.GetRuntimeName() == "" {
		t.Errorf("version: %v, %v", version, err)
	}
	status, err := b.Runtime.Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatalf("status: %v", err)
	}
	for _, want := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		ready := false
		for _, c := range status.GetStatus().GetConditions() {
			ready = ready || (c.GetType() == want && c.GetStatus())
		}
		if !ready {
			t.Errorf("%s is not true: %v", want, status.GetStatus())
		}
	}
	fs, err := b.Images.ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{})
	if err != nil || len(fs.GetImageFilesystems()) == 0 || fs.GetImageFilesystems()[0].GetFsId().GetMountpoint() == "" {
		t.Errorf("image file systems: %v, %v", fs, err)
	}
}

func checkImages(t *testing.T, b Target) {
	got, err := b.Images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: Image}})
	if err != nil || got.GetImage().GetId() == "" {
		t.Fatalf("image status: %v, %v", got, err)
	}
	byID, err := b.Images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: got.GetImage().GetId()}})
	if err != nil || byID.GetImage().GetId() != got.GetImage().GetId() {
		t.Errorf("image status by id: %v, %v", byID, err)
	}
	list, err := b.Images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatalf("list images: %v", err)
	}
	found := false
	for _, img := range list.GetImages() {
		found = found || img.GetId() == got.GetImage().GetId()
	}
	if !found {
		t.Errorf("image %s is not in the list", got.GetImage().GetId())
	}
	absent, err := b.Images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "localhost/nothing/here:v0"}})
	if err != nil || absent.GetImage() != nil {
		t.Errorf("status of an image that is not there: %v, %v; want nothing", absent, err)
	}
}

func checkSandboxLife(t *testing.T, b Target) {
	p := b.newPod(t)
	list := func() []*runtimeapi.PodSandbox {
		out, err := b.Runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: p.config.GetLabels()}})
		if err != nil {
			t.Fatalf("list sandboxes: %v", err)
		}
		return out.GetItems()
	}
	items := list()
	if len(items) != 1 || items[0].GetId() != p.id || items[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
		t.Fatalf("after run: %v", items)
	}
	got, err := b.Runtime.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
	if err != nil || got.GetStatus().GetMetadata().GetUid() != p.config.GetMetadata().GetUid() || got.GetStatus().GetCreatedAt() == 0 {
		t.Errorf("status: %v, %v", got, err)
	}
	for range 2 { // twice is harmless
		if _, err := b.Runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
			t.Fatalf("stop: %v", err)
		}
	}
	if items := list(); len(items) != 1 || items[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("after stop: %v", items)
	}
	for range 2 {
		if _, err := b.Runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
			t.Fatalf("remove: %v", err)
		}
	}
	if items := list(); len(items) != 0 {
		t.Errorf("after remove: %v", items)
	}
}

func checkContainerLife(t *testing.T, b Target) {
	p := b.newPod(t)
	id := p.createContainer(t, "main", serverScript)
	if got := b.containerStatus(t, id); got.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED || got.GetStartedAt() != 0 {
		t.Errorf("after create: %v", got)
	}
	if _, err := b.Runtime.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatalf("start: %v", err)
	}
	if got := b.containerStatus(t, id); got.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || got.GetStartedAt() < got.GetCreatedAt() {
		t.Errorf("after start: %v", got)
	}
	if _, err := b.Runtime.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err == nil {
		t.Error("a running container was started again")
	}
	running, err := b.Runtime.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		PodSandboxId: p.id, State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil || len(running.GetContainers()) != 1 || running.GetContainers()[0].GetId() != id {
		t.Errorf("list of running: %v, %v", running, err)
	}
	if _, err := b.Runtime.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatalf("remove a running container: %v", err)
	}
	_, err = b.Runtime.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	wantCode(t, err, codes.NotFound)
}

func checkExitCode(t *testing.T, b Target) {
	p := b.newPod(t)
	for name, tt := range map[string]struct {
		script string
		code   int32
		reason string
	}{
		"zero":  {"true", 0, "Completed"},
		"three": {"sleep 0.2; exit 3", 3, "Error"},
	} {
		got := b.waitExited(t, p.startContainer(t, name, tt.script))
		// The two times are not compared: containerd may record the start after the end of a short program.
		if got.GetExitCode() != tt.code || got.GetReason() != tt.reason || got.GetFinishedAt() == 0 || got.GetStartedAt() == 0 {
			t.Errorf("%s: code %d reason %q, want %d %q", name, got.GetExitCode(), got.GetReason(), tt.code, tt.reason)
		}
	}
}

func checkContainerLog(t *testing.T, b Target) {
	p := b.newPod(t)
	b.waitExited(t, p.startContainer(t, "talk", "echo one; echo two words"))
	var lines []string
	kit.Eventually(t, "log is complete", func() bool {
		lines = strings.Split(strings.TrimSpace(readLog(t, p, "talk")), "\n")
		return len(lines) == 2
	})
	for i, want := range []string{"one", "two words"} {
		when, rest, _ := strings.Cut(lines[i], " ")
		if _, err := time.Parse(time.RFC3339Nano, when); err != nil || rest != "stdout F "+want {
			t.Errorf("log line %q, want a time and %q", lines[i], "stdout F "+want)
		}
	}
}

func checkStopWithGrace(t *testing.T, b Target) {
	p := b.newPod(t)
	id := p.startContainer(t, "main", serverScript)
	const grace = 10 // seconds; the server needs a fraction of one
	for range 2 {    // twice is harmless
		if _, err := b.Runtime.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: grace}); err != nil {
			t.Fatalf("stop: %v", err)
		}
	}
	// A shell that is stopped before it has set its trap is killed by the signal.
	if got := b.waitExited(t, id); got.GetExitCode() != 0 && got.GetExitCode() != 128+15 {
		t.Errorf("after stop: %v", got)
	}
	id = p.startContainer(t, "killed", "trap '' TERM; while true; do sleep 0.1; done")
	if _, err := b.Runtime.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 0}); err != nil {
		t.Fatalf("kill: %v", err)
	}
	if got := b.waitExited(t, id); got.GetExitCode() != 137 || got.GetReason() != "Error" {
		t.Errorf("after kill: code %d reason %q, want 137 Error", got.GetExitCode(), got.GetReason())
	}
}

func checkExecSync(t *testing.T, b Target) {
	p := b.newPod(t)
	id := p.startContainer(t, "main", serverScript)
	run := func(timeout int64, command ...string) (*runtimeapi.ExecSyncResponse, error) {
		return b.Runtime.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: timeout})
	}
	out, err := run(10, "sh", "-c", "echo hello; exit 4")
	if err != nil || string(out.GetStdout()) != "hello\n" || out.GetExitCode() != 4 {
		t.Errorf("exec: %v, %v", out, err)
	}
	_, err = run(1, "sleep", "20")
	wantCode(t, err, codes.DeadlineExceeded)
	if _, err := b.Runtime.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatalf("stop: %v", err)
	}
	if _, err := run(1, "true"); err == nil {
		t.Error("exec worked in a container that has ended")
	}
}

func checkSandboxEndsAll(t *testing.T, b Target) {
	p := b.newPod(t)
	id := p.startContainer(t, "main", serverScript)
	if _, err := b.Runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Fatalf("stop sandbox: %v", err)
	}
	if got := b.waitExited(t, id); got.GetExitCode() != 137 {
		t.Errorf("exit code %d, want 137", got.GetExitCode())
	}
	if _, err := b.Runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Fatalf("remove sandbox: %v", err)
	}
	_, err := b.Runtime.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	wantCode(t, err, codes.NotFound)
}

func checkUnknownIDs(t *testing.T, b Target) {
	const id = "0000000000000000000000000000000000000000000000000000000000000000"
	_, err := b.Runtime.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	wantCode(t, err, codes.NotFound)
	_, err = b.Runtime.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	wantCode(t, err, codes.NotFound)
	_, err = b.Runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	wantCode(t, err, codes.OK)
	_, err = b.Runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	wantCode(t, err, codes.OK)
	_, err = b.Runtime.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id})
	wantCode(t, err, codes.OK)
	_, err = b.Runtime.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	wantCode(t, err, codes.OK)
}

func checkNamesAreTaken(t *testing.T, b Target) {
	p := b.newPod(t)
	if _, err := b.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: p.config}); err == nil {
		t.Error("two sandboxes of one name and attempt")
	}
}

func checkEvents(t *testing.T, b Target) {
	stream, err := b.Runtime.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatalf("ask for events: %v", err)
	}
	seen := make(chan *runtimeapi.ContainerEventResponse)
	go func() { // ends with the stream, which ends with the test
		defer close(seen)
		for {
			e, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case seen <- e:
			case <-t.Context().Done():
				return
			}
		}
	}()
	await := func(id string, kind runtimeapi.ContainerEventType) bool {
		deadline := time.NewTimer(callTimeout)
		defer deadline.Stop()
		for {
			select {
			case e, ok := <-seen:
				if !ok {
					return false
				}
				if e.GetContainerId() == id && e.GetContainerEventType() == kind {
					return true
				}
			case <-deadline.C:
				return false
			}
		}
	}
	// The stream is open once it has delivered one event; until then a sandbox may be missed.
	p := b.newPod(t)
	id := p.startContainer(t, "main", "sleep 0.5; exit 3")
	for _, kind := range []runtimeapi.ContainerEventType{runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT} {
		if !await(id, kind) {
			t.Fatalf("no event %s", kind)
		}
	}
}

func checkMissingImage(t *testing.T, b Target) {
	p := b.newPod(t)
	_, err := b.Runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.id, SandboxConfig: p.config, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "localhost/nothing/here:v0"},
	}})
	wantCode(t, err, codes.NotFound)
}

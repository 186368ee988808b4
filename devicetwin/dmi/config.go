package dmi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/dmi/peer"
)

const (
	// DefaultDir is where KubeEdge's mappers look for the socket.
	DefaultDir = "/etc/kubeedge"
	// defaultCallTimeout is KubeEdge's limit for a call to a mapper.
	defaultCallTimeout = 10 * time.Second
	// defaultSettle is how long a mapper of KubeEdge's framework may take to start a device. A change of the device before that may end it.
	defaultSettle = 500 * time.Millisecond
	// defaultUnreachable is how long a mapper may be away before its devices say so: longer than a container's restart.
	defaultUnreachable = time.Minute
)

// Config is the configuration of a Server.
type Config struct {
	// Dir is the folder of the sockets; empty is DefaultDir.
	Dir string
	// CgroupRoot is the control group below which the kubelet makes those of pods; empty is the root.
	CgroupRoot string
	// AllowHost lets processes that are outside pods and of edgecore's own user, which is root, be mappers, of any protocol.
	AllowHost bool
	// CallTimeout bounds a call to a mapper, Settle is the least time between two changes of one device, Unreachable is when the devices of a mapper
	// say that it is away; 0 is 10 s, 500 ms, 60 s.
	CallTimeout, Settle, Unreachable time.Duration
	// Registerer gets the metrics; nil: none.
	Registerer prometheus.Registerer
}

// Validate returns all faults.
func (c Config) Validate() error {
	var errs []error
	if c.Dir != "" && !filepath.IsAbs(c.Dir) {
		errs = append(errs, fmt.Errorf("dir %q is no absolute path", c.Dir))
	}
	if c.CallTimeout < 0 || c.Settle < 0 || c.Unreachable < 0 {
		errs = append(errs, errors.New("a time is below 0"))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.Dir == "" {
		c.Dir = DefaultDir
	}
	c.Dir = filepath.Clean(c.Dir)
	for value, byDefault := range map[*time.Duration]time.Duration{
		&c.CallTimeout: defaultCallTimeout, &c.Settle: defaultSettle, &c.Unreachable: defaultUnreachable,
	} {
		if *value == 0 {
			*value = byDefault
		}
	}
	return c
}

// Twin takes what mappers report. Calls are concurrent. Each returns when the report is as durable as is promised to a mapper. The error is
// devicetwin.ErrNoDevice, a *devicetwin.Refusal, or another one: then the mapper may report again.
type Twin interface {
	ReportValues(ctx context.Context, id types.NamespacedName, update devicetwin.Update, received time.Time) error
	ReportState(ctx context.Context, id types.NamespacedName, state string, received time.Time) error
}

// Authorizer decides which pod may serve the devices of a protocol. It is asked at each registration.
type Authorizer interface {
	// Authorize returns an error that says why not.
	Authorize(ctx context.Context, mapper peer.Peer, protocol string) error
}

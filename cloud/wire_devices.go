package cloud

import (
	"fmt"

	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/controllers/deviceclaim"
	"github.com/frond-edge/frond/controllers/devicecopy"
	"github.com/frond-edge/frond/controllers/devicestatus"
	"github.com/frond-edge/frond/controllers/devicewarnings"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/consume"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/telemetry"
)

// deviceServices are the parts that take what gateways send about devices.
type deviceServices struct {
	statuses *devicestatus.Applier
	samples  *telemetry.Receiver
	// messages are of apps, on custom MQTT topics.
	messages *telemetry.Receiver
}

// buildDevices creates the parts for devices.
func buildDevices(f *foundation, p publishing) (d deviceServices, parts []lifecycle.Part, err error) {
	kube, err := dynamic.NewForConfig(f.clients.Config)
	if err != nil {
		return d, nil, fmt.Errorf("kubernetes: %w", err)
	}
	latest, err := consume.NewLatestReports(subject.Report, f.hub.nc)
	if err != nil {
		return d, nil, err
	}
	lookup := devicestatus.NewLookup(f.objects, kube)
	d.statuses = devicestatus.New(lookup, kube, latest.StillLast, f.registry, f.log.Named("devices"))
	if d.samples, err = telemetry.NewReceiver(f.hub.nc, lookup.IsAssigned, telemetry.NewReceiverMetrics(telemetry.Samples(), f.registry), f.metrics, f.log.Named("telemetry")); err != nil {
		return d, nil, err
	}
	if d.messages, err = telemetry.NewMessageReceiver(f.hub.nc, telemetry.NewReceiverMetrics(telemetry.Messages(), f.registry), f.metrics, f.log.Named("messages")); err != nil {
		return d, nil, err
	}
	parts, err = buildDeviceControllers(f, p, d.statuses, kube)
	return d, parts, err
}

// buildDeviceControllers creates the parts that follow the Devices and DeviceStatuses.
func buildDeviceControllers(f *foundation, p publishing, applier *devicestatus.Applier, kube dynamic.Interface) ([]lifecycle.Part, error) {
	settings := f.cfg.Devices
	statuses, err := devicestatus.NewStatuses(f.clients.ReadRetry, settings.StatusInDevice)
	if err != nil {
		return nil, err
	}
	log := f.log.Named("devices")
	absence := devicestatus.NewAbsence(applier, f.objects, statuses, f.members, log)
	warnings := devicewarnings.New(f.objects, statuses, f.clients.Own, f.members, f.registry, log.Named("warnings"))
	claims := deviceclaim.New(f.objects, statuses, kube, p.engine, f.members, f.registry, log.Named("claims"))
	parts := []lifecycle.Part{
		{Name: "devicestatuses", Start: statuses.Start},
		{Name: "devices", Start: absence.Start},
		{Name: "devicewarnings", Start: warnings.Start},
		{Name: "deviceclaims", Start: claims.Start},
	}
	if settings.StatusInDevice {
		copier := devicecopy.New(settings.StatusInDevicePerSecond, f.objects, statuses, kube, f.members, f.registry, log.Named("copy"))
		parts = append(parts, lifecycle.Part{Name: "devicecopy", Start: copier.Start})
	}
	return parts, nil
}

package deviceclaim

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/devicestatus"
)

// The indexes of the informers, so that a scan reads no more than the Devices that are not settled and the DeviceStatuses with the condition. Each has one
// value, present.
const (
	unsettledIndex = "frond-claim-unsettled"
	heldIndex      = "frond-claim-held"
	present        = "true"
)

// indexes are the informers' objects. They must not be changed.
type indexes struct{ devices, statuses toolscache.Indexer }

// indexesOf returns the objects of the caches. An error is about a kind that is not served, or not read within some time.
func indexesOf(ctx context.Context, objects, statuses cache.Cache) (found indexes, err error) {
	all, err := devicestatus.Follow(ctx, objects, devices.DeviceKind, toolscache.Indexers{unsettledIndex: byUnsettled})
	if err != nil {
		return found, err
	}
	reports, err := devicestatus.Follow(ctx, statuses, devices.DeviceStatusKind, toolscache.Indexers{heldIndex: byHeld})
	if err != nil {
		return found, err
	}
	return indexes{all.GetIndexer(), reports.GetIndexer()}, nil
}

// byUnsettled indexes the Devices whose claim is not that of the node that they name, or that have an order to force a move.
func byUnsettled(object any) ([]string, error) {
	device, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, nil
	}
	annotations := device.GetAnnotations()
	if annotations[names.AnnotationDeviceHolder] != devices.AssignedNode(device) || annotations[names.AnnotationForceMove] != "" {
		return []string{present}, nil
	}
	return nil, nil
}

// byHeld indexes the DeviceStatuses that say that another gateway holds the device.
func byHeld(object any) ([]string, error) {
	if status, ok := object.(*unstructured.Unstructured); ok {
		if _, held := withoutHeld(conditionsOf(status)); held {
			return []string{present}, nil
		}
	}
	return nil, nil
}

// valuesOf returns the objects of an index that has one value.
func valuesOf(objects toolscache.Indexer, index string) (found []*unstructured.Unstructured, err error) {
	all, err := objects.ByIndex(index, present)
	for _, object := range all {
		if o, ok := object.(*unstructured.Unstructured); ok {
			found = append(found, o)
		}
	}
	return found, err //nolint:wrapcheck // the index exists
}

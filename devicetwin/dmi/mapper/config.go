package mapper

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Config is the configuration of a Registry. All fields are required but CgroupRoot.
type Config struct {
	// Dir is the folder of the sockets.
	Dir string
	// CgroupRoot is that of peer.Identify.
	CgroupRoot string
	// CallTimeout bounds a call to a mapper, Settle is the least time between two changes of one device, Unreachable is when the devices of a mapper
	// say that it is away.
	CallTimeout, Settle, Unreachable time.Duration
}

// DeliverySink is told how far the present Device has come, when that changes. It must not block.
type DeliverySink interface {
	SetDelivery(id types.NamespacedName, delivery Delivery)
}

// RecordStore keeps what the mappers have, so that a restart of edgecore neither restarts devices nor forgets one.
type RecordStore interface {
	// SaveMapperRecords stores records by key and deletes those that are nil. When it returns nil, all are on disk.
	SaveMapperRecords(ctx context.Context, records map[string][]byte) error
	// LoadMapperRecords returns all records.
	LoadMapperRecords(ctx context.Context) (map[string][]byte, error)
}

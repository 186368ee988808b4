package devices

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/edged/devices/recordstore"
)

// twinRecords implements devicetwin.RecordStore.
type twinRecords struct{ store *recordstore.Store }

func (r twinRecords) SaveTwins(ctx context.Context, records map[types.NamespacedName][]byte) error {
	byKey := make(map[string][]byte, len(records))
	for id, record := range records {
		byKey[id.String()] = record
	}
	return r.store.Save(ctx, byKey)
}

func (r twinRecords) LoadTwins(ctx context.Context) (map[types.NamespacedName][]byte, error) {
	byKey, err := r.store.Load(ctx)
	if err != nil {
		return nil, err
	}
	records := make(map[types.NamespacedName][]byte, len(byKey))
	for key, record := range byKey {
		namespace, name, ok := strings.Cut(key, "/")
		if !ok {
			return nil, fmt.Errorf("record of %q, which is no device", key)
		}
		records[types.NamespacedName{Namespace: namespace, Name: name}] = record
	}
	return records, nil
}

// mapperRecords implements mapper.RecordStore.
type mapperRecords struct{ store *recordstore.Store }

func (r mapperRecords) SaveMapperRecords(ctx context.Context, records map[string][]byte) error {
	return r.store.Save(ctx, records)
}

func (r mapperRecords) LoadMapperRecords(ctx context.Context) (map[string][]byte, error) {
	return r.store.Load(ctx)
}

package mapper

import (
	"slices"

	"google.golang.org/grpc/status"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin/dmi/message"
)

// The reasons of a Delivery.
const (
	ReasonDelivered         = "Delivered"
	ReasonPending           = "Pending"
	ReasonModelMissing      = "ModelMissing"
	ReasonMapperUnreachable = "MapperUnreachable"
	ReasonMapperRefused     = devices.ReasonMapperRefused
)

// Delivery says whether the mapper has a Device as it is now.
type Delivery struct {
	// Generation is of the Device that this is about.
	Generation int64
	// Reason is one of the constants.
	Reason string
	// Message says more, for people.
	Message string
	// Notes say what of the Device the mapper does not get as it is.
	Notes []message.Note
}

// progressOf returns how far a wanted device has come.
func progressOf(e *entry, away bool, name string) Delivery {
	d := Delivery{Generation: e.generation, Reason: ReasonPending}
	if e.want != nil {
		d.Notes = e.want.notes
	}
	switch {
	case e.modelMissing && e.err != nil:
		d.Reason, d.Message = ReasonModelMissing, e.err.Error()
	case e.modelMissing:
		d.Reason, d.Message = ReasonModelMissing, "the DeviceModel is not on this node"
	case away:
		d.Reason, d.Message = ReasonMapperUnreachable, "mapper "+name+" does not listen on its socket"
	case e.next() == nothing:
		d.Reason = ReasonDelivered
	case e.err != nil:
		d.Reason, d.Message = ReasonMapperRefused, "mapper "+name+": "+status.Convert(e.err).Message()
	}
	return d
}

func equalDeliveries(a, b Delivery) bool {
	return a.Generation == b.Generation && a.Reason == b.Reason && a.Message == b.Message && slices.Equal(a.Notes, b.Notes)
}

package mapper

import (
	"slices"

	"google.golang.org/grpc/status"

	"github.com/frond-edge/frond/devicetwin/dmi/message"
)

// The reasons of a Delivery.
const (
	ReasonDelivered         = "Delivered"
	ReasonPending           = "Pending"
	ReasonModelMissing      = "ModelMissing"
	ReasonMapperUnreachable = "MapperUnreachable"
	ReasonMapperRefused     = "MapperRefused"
)

// Delivery says whether the mapper has a Device as it is now.
type Delivery struct {
	// Reason is one of the constants.
	Reason string
	// Message says more, for people.
	Message string
	// Notes say what of the Device the mapper does not get as it is.
	Notes []message.Note
}

// progressOf returns how far a wanted device has come.
func progressOf(e *entry, away bool, name string) Delivery {
	switch {
	case e.modelMissing && e.err != nil:
		return Delivery{Reason: ReasonModelMissing, Message: e.err.Error()}
	case e.modelMissing:
		return Delivery{Reason: ReasonModelMissing, Message: "the DeviceModel is not on this node"}
	case away:
		return Delivery{Reason: ReasonMapperUnreachable, Message: "mapper " + name + " does not listen on its socket", Notes: e.want.notes}
	case e.next() == nothing:
		return Delivery{Reason: ReasonDelivered, Notes: e.want.notes}
	case e.err != nil:
		return Delivery{Reason: ReasonMapperRefused, Message: "mapper " + name + ": " + status.Convert(e.err).Message(), Notes: e.want.notes}
	}
	return Delivery{Reason: ReasonPending, Notes: e.want.notes}
}

func equalDeliveries(a, b Delivery) bool {
	return a.Reason == b.Reason && a.Message == b.Message && slices.Equal(a.Notes, b.Notes)
}

package devicetwin

import (
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/devices"
)

const (
	// ReasonTaken is the reason of the condition ReportsTaken when messages are taken again.
	ReasonTaken = "Taken"
	// refusalHold is how long a refusal stays in the condition if no message has its property any more.
	refusalHold = 10 * time.Minute
	// maxRefusal bounds the text of a condition.
	maxRefusal = 512
)

// refused returns the condition ReportsTaken after a message was refused, nil if it stays. The first refusal stays until it is over: an app with several
// wrong properties would change the condition with each message.
func refused(conditions []metav1.Condition, err error) *Condition {
	var refusal *Refusal
	if !errors.As(err, &refusal) || meta.IsStatusConditionFalse(conditions, devices.ConditionReportsTaken) {
		return nil
	}
	text := refusal.Error()
	return &Condition{
		Type: devices.ConditionReportsTaken, Status: metav1.ConditionFalse, Reason: refusal.Reason, Message: strings.ToValidUTF8(text[:min(len(text), maxRefusal)], ""),
	}
}

// taken returns the condition ReportsTaken after a message was taken, nil if it stays: the message says nothing of the property that was refused, and
// that was not long ago.
func taken(conditions []metav1.Condition, u Update, now time.Time) *Condition {
	before := meta.FindStatusCondition(conditions, devices.ConditionReportsTaken)
	if before == nil || before.Status != metav1.ConditionFalse {
		return nil
	}
	over := before.Reason == ReasonTooLarge || now.Sub(before.LastTransitionTime.Time) > refusalHold
	for name := range u.Properties {
		over = over || strings.HasPrefix(before.Message, (&Refusal{Property: name}).Error())
	}
	if !over {
		return nil
	}
	return &Condition{Type: devices.ConditionReportsTaken, Status: metav1.ConditionTrue, Reason: ReasonTaken, Message: "messages are taken again"}
}

package minileaf

// Permitted reports whether a hub that has sent an INFO allows a subscription and a message.
func Permitted(info, subject string) (subscribe, publish bool, err error) {
	h := &hubLink{}
	err = h.setPermissions(info)
	return h.maySubscribe(subject), h.mayPublish(subject), err
}

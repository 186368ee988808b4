package swarm_test

import (
	"errors"

	"github.com/frond-edge/frond/loadtest/swarm/enrolment"
)

func errorsAsRefusal(err error) bool {
	_, refused := errors.AsType[*enrolment.RefusedError](err)
	return refused
}

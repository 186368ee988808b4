package read

import (
	"errors"
)

// ErrReplicaLags reports that a server has not yet seen messages that others have; it will in a moment.
var ErrReplicaLags = errors.New("the server that answered lags behind")

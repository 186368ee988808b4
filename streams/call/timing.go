package call

import (
	"time"
)

// CallTimeout is how long a node waits for the reply to a call. Pages and pieces are sized to take about 1 s.
const CallTimeout = 15 * time.Second

package devicecopy

import "time"

// PatchFor is patchFor.
var PatchFor = patchFor

// SetInterval sets the least time between two writes of a Device. Call it before Start.
func (c *Copier) SetInterval(d time.Duration) { c.interval = d }

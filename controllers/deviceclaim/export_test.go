package deviceclaim

import "time"

// SetScanEvery sets how often a Reconciler that was not started looks at all Devices.
func (r *Reconciler) SetScanEvery(d time.Duration) { r.scanEvery = d }

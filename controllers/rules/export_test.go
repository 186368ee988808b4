package rules

import "time"

// StatusPeriodOf is the period of the statuses of a replica with so many rules.
func StatusPeriodOf(owned int) time.Duration { return statusPeriod(owned) }

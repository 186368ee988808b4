package hostaddr

// IsExternalLink is for tests.
var IsExternalLink = isExternalLink

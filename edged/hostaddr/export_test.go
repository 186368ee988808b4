package hostaddr

// IsExternalLink exports isExternalLink to tests.
var IsExternalLink = isExternalLink

package reports

// For the tests.
var (
	OwnAddresses   = Ways.addresses
	OwnAnnotations = Ways.annotations
	OwnEndpoints   = Ways.endpoints
)

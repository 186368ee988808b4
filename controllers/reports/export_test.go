package reports

// OwnAddresses for the tests.
var OwnAddresses = Ways.addresses

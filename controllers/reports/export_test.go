package reports

// OwnAddresses for the tests.
var OwnAddresses = ownAddresses

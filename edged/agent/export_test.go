package agent

// ShareSocket exports shareSocket to tests.
var ShareSocket = shareSocket

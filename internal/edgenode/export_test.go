package edgenode

// NewStorage gives tests the answer to a full disk.
var NewStorage = newStorage

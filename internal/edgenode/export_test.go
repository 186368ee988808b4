package edgenode

// NewStorage gives tests the answer to a full disk.
var NewStorage = newStorage //nolint:gochecknoglobals // the way of Go's own export_test.go

package ports

// For the tests.
var (
	Assign = assign
	Parse  = parse
)

package cloud

// Owner returns the live replica that owns a node, "" if none is known.
func (m *Members) Owner(node string) string { return ownerOf(m.Live(), node) }

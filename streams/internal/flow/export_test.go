package flow

// NodeCount returns the number of nodes that have a bucket.
func (b *NodeLimiter) NodeCount() int { return len(b.nodes) }

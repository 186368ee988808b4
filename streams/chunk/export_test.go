package chunk

import (
	"github.com/frond-edge/frond/api/wire"
)

// PieceRequest parses a node's request as a cloudcore does.
func PieceRequest(node string, data []byte) (wire.PieceRequest, error) {
	return parsePieceRequest(node, data)
}

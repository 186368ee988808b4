package read

import (
	"github.com/frond-edge/frond/api/wire"
)

// OmitsPayload reports whether a payload was left out of the page.
func (p SnapshotPage) OmitsPayload() bool {
	for _, m := range p.Messages {
		if m.Size > 0 {
			return true
		}
	}
	return false
}

// EstimateLinkBytes estimates the size of a message as JSON.
func EstimateLinkBytes(m wire.SnapshotObject) int {
	size := len(m.Subject) + len(m.Data)*4/3 + 32 //nolint:mnd // base64, and the names of the fields
	for name, values := range m.Header {
		size += len(name)
		for _, value := range values {
			size += len(value)
		}
	}
	return size
}

// TruncateToFit shortens a page to the budget of a node: about so many bytes on the link, without the payloads that alone are larger. The
// first message always stays.
func (p SnapshotPage) TruncateToFit(take int) SnapshotPage {
	size := 0
	for i := range p.Messages {
		m := &p.Messages[i]
		if len(m.Data) > take {
			m.Size, m.Data = len(m.Data), nil
		}
		size += EstimateLinkBytes(*m)
		if i > 0 && size > take {
			p.Messages, p.LastSequence, p.More = p.Messages[:i], p.Messages[i-1].Sequence, true
			break
		}
	}
	return p
}

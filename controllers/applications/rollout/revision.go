package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/frond-edge/frond/api/apps"
)

// LabelApplication of a ControllerRevision is the LabelValue of its application.
const LabelApplication = "frond.io/edgeapplication"

// RevisionName returns the name of the ControllerRevision of a specification. Equal specifications have one, so that to go back to one
// of them is to go back to its revision.
func RevisionName(app string, spec apps.EdgeApplicationSpec) (string, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("encode the specification: %w", err)
	}
	digest := sha256.Sum256(text)
	return app[:min(len(app), maxNamePart)] + "-" + hex.EncodeToString(digest[:5]), nil
}

// maxNamePart leaves room in a name of 253 characters.
const maxNamePart = 240

// LabelValue returns the name of an application as the value of a label, which has at most 63 characters.
func LabelValue(app string) string {
	const most = 63
	if len(app) <= most {
		return app
	}
	digest := sha256.Sum256([]byte(app))
	return "sha256-" + hex.EncodeToString(digest[:16])
}

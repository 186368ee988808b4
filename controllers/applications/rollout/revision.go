package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/frond-edge/frond/api/apps"
)

// LabelApplication of a ControllerRevision is the name of its application.
const LabelApplication = "frond.io/edgeapplication"

// RevisionName returns the name of the ControllerRevision of a specification. Equal specifications have one, so that to go back to one
// of them is to go back to its revision.
func RevisionName(app string, spec apps.EdgeApplicationSpec) (string, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("encode the specification: %w", err)
	}
	digest := sha256.Sum256(text)
	return app + "-" + hex.EncodeToString(digest[:5]), nil
}

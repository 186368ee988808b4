package backup

import "github.com/frond-edge/frond/api/identity"

// NewQuickPassphrase is NewPassphrase with little work for each guess.
func NewQuickPassphrase(passphrase string) (Key, error) { return stretchPassphrase(passphrase, 10) }

// MergeIdentity is mergeIdentity.
func MergeIdentity(have, saved identity.NodeIdentitySpec) identity.NodeIdentitySpec {
	return mergeIdentity(have, saved)
}

package backup

import (
	"slices"

	"github.com/frond-edge/frond/api/identity"
)

// mergeIdentity merges the NodeIdentity of the cluster and the saved one.
//
// The later recorded key wins: a backup may be older than the cluster, and a cluster that was restored from a copy of etcd may be
// older than the backup. Revoked keys of both sides stay revoked. A revocation holds unless a key was recorded after it, which requires
// a token for this very node.
func mergeIdentity(have, saved identity.NodeIdentitySpec) identity.NodeIdentitySpec {
	merged := *have.DeepCopy()
	if saved.Issued.After(have.Issued.Time) {
		merged = *saved.DeepCopy()
		if have.RevokedAt != nil && !have.RevokedAt.Time.Before(saved.Issued.Time) {
			merged = *have.DeepCopy()
		}
	} else if saved.RevokedAt != nil && !saved.RevokedAt.Time.Before(have.Issued.Time) && have.RevokedAt == nil {
		merged.Key, merged.Previous, merged.RevokedAt = "", "", saved.RevokedAt.DeepCopy()
	}
	revoked := slices.Clone(have.Revoked)
	for _, spec := range []identity.NodeIdentitySpec{have, saved} {
		revoked = append(revoked, spec.Revoked...)
		if merged.RevokedAt != nil {
			revoked = append(revoked, spec.Key, spec.Previous) // keys of a revoked node are rejected
		}
	}
	merged.Revoked = distinctKeys(revoked)
	for _, key := range []*string{&merged.Key, &merged.Previous} {
		if slices.Contains(merged.Revoked, *key) {
			*key = ""
		}
	}
	if len(merged.Revoked) == 0 {
		merged.Revoked = nil
	}
	return merged
}

// distinctKeys removes repeats and keeps the order, so that an unchanged list is equal to the original.
func distinctKeys(keys []string) (distinct []string) {
	for _, key := range keys {
		if key != "" && !slices.Contains(distinct, key) {
			distinct = append(distinct, key)
		}
	}
	return distinct
}

// Package protection defines the names that keep Frond's control plane off gateways and protect it from accidental deletion: the label of
// protected namespaces and the annotation that confirms a deletion.
//
// It also defines the annotation with the time of the last backup.
//
// The admission policies of deploy/policy use these names; a test there compares them.
package protection

const (
	// NamespaceLabel marks a namespace whose pods never run on a gateway; its value is NamespaceProtected. Frond's own namespace is
	// protected without it.
	NamespaceLabel = "frond.io/protected"
	// NamespaceProtected is the value of NamespaceLabel that takes effect.
	NamespaceProtected = "true"

	// AnnotationConfirmDeletion permits the deletion of a protected object. Its value is the object's name, so that one command cannot
	// confirm several deletions by mistake.
	AnnotationConfirmDeletion = "frond.io/confirm-deletion"

	// AnnotationLastBackup on Frond's namespace is the time of its last backup, in RFC 3339.
	AnnotationLastBackup = "frond.io/last-backup"
)

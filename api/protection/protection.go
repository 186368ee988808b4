// Package protection holds the names by which Frond's control plane is kept off gateways and kept from being deleted by mistake:
// the label of protected namespaces and the annotation that confirms a deletion.
//
// It also holds the annotation that tells how old the last backup is.
//
// The admission policies of deploy/policy use them; a test there compares.
package protection

const (
	// NamespaceLabel marks a namespace whose pods never run on a gateway; its value is NamespaceProtected. The namespace of Frond itself
	// is protected without it.
	NamespaceLabel = "frond.io/protected"
	// NamespaceProtected is the value of NamespaceLabel that counts.
	NamespaceProtected = "true"

	// AnnotationConfirmDeletion on an object that is protected from deletion lets it be deleted. Its value is the object's name, so
	// that one command cannot confirm several by mistake.
	AnnotationConfirmDeletion = "frond.io/confirm-deletion"

	// AnnotationLastBackup on the namespace of Frond is when the last backup of it was made, in RFC 3339.
	AnnotationLastBackup = "frond.io/last-backup"
)

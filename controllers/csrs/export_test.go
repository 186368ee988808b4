package csrs

// Decide is decide, for tables.
var Decide = decide

// CertificateBudget is how many certificates a node gets at once.
const CertificateBudget = certificateBudget

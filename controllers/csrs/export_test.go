package csrs

// Decide is decide, for tables.
var Decide = decide

// Budget is how many certificates a node gets at once.
const Budget = budget

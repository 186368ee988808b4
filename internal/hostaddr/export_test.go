package hostaddr

// LeadsAway is for tests.
var LeadsAway = leadsAway

package install

// MergeConfiguration is configuration.
func (s Settings) MergeConfiguration(old string) (string, error) { return s.mergeConfiguration(old) }

package install

// MergeConfiguration is mergeConfiguration.
func (s Settings) MergeConfiguration(old string) (string, error) { return s.mergeConfiguration(old) }

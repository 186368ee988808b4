package install

// MergeConfiguration is mergeConfiguration.
func (s Settings) MergeConfiguration(old string) (string, error) { return s.mergeConfiguration(old) }

// MergeAsked is mergeAsked.
func (s Settings) MergeAsked(asked Settings) (Settings, error) { return s.mergeAsked(asked) }

package install

// Configuration is configuration.
func (s Settings) Configuration(old string) (string, error) { return s.configuration(old) }

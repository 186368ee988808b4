package config

import "errors"

// defaultLinksPerSecond is what a hub admits whose servers have seven tenths of a processor for it: one with 7 % of a core finished 25 log-ins a
// second (TestStorm_Ends).
const defaultLinksPerSecond = 250

// Links describes how gateways' links return after an outage.
type Links struct {
	// PerSecond is how many new links all servers of the hub together can admit in a second; 0 means 250. Gateways that cannot reach the hub
	// pause for the number of gateways divided by it at most, within 15 s and 5 min.
	PerSecond int `json:"perSecond,omitempty"`
}

// PerSecondOrDefault returns PerSecond, or its default.
func (l Links) PerSecondOrDefault() int {
	if l.PerSecond == 0 {
		return defaultLinksPerSecond
	}
	return l.PerSecond
}

func (l Links) validate() error {
	if l.PerSecond < 0 {
		return errors.New("links.perSecond: negative")
	}
	return nil
}

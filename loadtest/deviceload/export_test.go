package deviceload

import "time"

// Sample is a sample in the hub's stream.
type Sample = sample

// NewSample returns a sample with a device's time.
func NewSample(number int64, at time.Time) Sample {
	return Sample{number, at.UTC().Format(time.RFC3339Nano)}
}

// Judge judges the samples of one device, of which the numbers after one up to another were acked.
func Judge(after, last int64, hub []Sample, timeOf func(int64) time.Time) (int, error) {
	return compareSamples(map[string]expectation{"pump": {after, last}}, map[string][]sample{"pump": hub}, timeOf)
}

// CountWrites parses the apiserver's metrics.
func CountWrites(text string) (map[string]float64, error) {
	counts, err := parseRequests([]byte(text))
	all := map[string]float64{}
	for of, n := range counts {
		all[of.verb+" "+of.resource] = n
	}
	return all, err
}

package report

import (
	"fmt"
	"math"
	"slices"

	"github.com/frond-edge/frond/loadtest/exercise"
)

// minSizes is how many numbers of gateways a slope takes to have an error.
const minSizes = 3

// point is the memory of a component at a number of gateways.
type point struct{ gateways, bytes float64 }

// SizingLines says what each component takes for a thousand gateways more, and how sure that is.
func SizingLines(phases []exercise.Result) []string {
	memory := map[string][]point{}
	idle := map[string]float64{}
	for _, p := range phases {
		for name, usage := range p.Usage {
			memory[name] = append(memory[name], point{float64(p.Gateways), usage.Bytes})
			if p.Kind == "idle" && p.Gateways > 0 && p.Seconds > 0 {
				idle[name] = usage.CPUSeconds / p.Seconds / float64(p.Gateways) * 1000 //nolint:mnd // for a thousand
			}
		}
	}
	var names []string
	for name := range memory {
		names = append(names, name)
	}
	slices.Sort(names)
	var lines []string
	for _, name := range names {
		line := name + ": " + memorySlope(memory[name])
		if cores, measured := idle[name]; measured {
			line += fmt.Sprintf("; idle CPU of %.3f cores for 1,000 gateways, what it uses without any included", cores)
		}
		lines = append(lines, line)
	}
	return lines
}

// memorySlope returns the slope of memory over gateways with its standard error.
func memorySlope(points []point) string {
	var sizes []float64
	for _, p := range points {
		if !slices.Contains(sizes, p.gateways) {
			sizes = append(sizes, p.gateways)
		}
	}
	if len(sizes) < minSizes {
		return fmt.Sprintf("memory for more gateways unknown (%d sizes measured; let gateways join in %d phases or more)", len(sizes), minSizes)
	}
	slope, deviation := regress(points)
	const perThousand, megabyte = 1000, 1e6
	return fmt.Sprintf("%.0f MB of memory for 1,000 gateways more, plus or minus %.0f (measured from %.0f to %.0f gateways; beyond that it is a guess)",
		slope*perThousand/megabyte, 2*deviation*perThousand/megabyte, slices.Min(sizes), slices.Max(sizes))
}

// regress returns the slope by least squares and its standard error.
func regress(points []point) (slope, deviation float64) {
	n := float64(len(points))
	var meanX, meanY, xx, xy float64
	for _, p := range points {
		meanX, meanY = meanX+p.gateways/n, meanY+p.bytes/n
	}
	for _, p := range points {
		xx += (p.gateways - meanX) * (p.gateways - meanX)
		xy += (p.gateways - meanX) * (p.bytes - meanY)
	}
	slope = xy / xx
	var residual float64
	for _, p := range points {
		d := p.bytes - meanY - slope*(p.gateways-meanX)
		residual += d * d
	}
	return slope, math.Sqrt(residual / (n - 2) / xx) //nolint:mnd // two parameters
}

package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/frond-edge/frond/loadtest/exercise"
)

//go:embed page.html
var pageText string

// The size of a plot, and its margin for labels.
const (
	plotWidth, plotHeight, plotMargin = 640, 140, 40
)

// plot is the worst latency by second of a phase.
type plot struct {
	Points          string
	Width, Height   int
	Top             string
	Seconds, Margin int
}

// HTML returns the report as one page. Its plots are SVG in the page, and it has no script.
func (r *Report) HTML() ([]byte, error) {
	page, err := template.New("page").Funcs(template.FuncMap{
		"plot": plotOf, "phaseName": phaseName, "linkHour": exercise.BytesPerLinkHour,
		"ms": func(v float64) string { return fmt.Sprintf("%.1f", v) },
		"mb": func(v float64) string { return fmt.Sprintf("%.1f", v/1e6) }, //nolint:mnd // megabytes
	}).Parse(pageText)
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	var b bytes.Buffer
	if err := page.Execute(&b, r); err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	return b.Bytes(), nil
}

func plotOf(p exercise.Result) *plot {
	if len(p.Latency.Worst) < 2 || slices.Max(p.Latency.Worst) == 0 {
		return nil
	}
	top := slices.Max(p.Latency.Worst)
	var points []string
	for i, v := range p.Latency.Worst {
		x := plotMargin + float64(i)/float64(len(p.Latency.Worst)-1)*(plotWidth-plotMargin)
		points = append(points, fmt.Sprintf("%.1f,%.1f", x, plotHeight-v/top*plotHeight+1))
	}
	return &plot{strings.Join(points, " "), plotWidth + 1, plotHeight + 2, fmt.Sprintf("%.0f ms", top), len(p.Latency.Worst), plotMargin} //nolint:mnd // room for the line
}

package cli

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Table aligns the columns of a list for people.
type Table struct{ w *tabwriter.Writer }

// NewTable begins a table with the names of its columns.
func NewTable(out io.Writer, columns ...any) Table {
	t := Table{w: tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)}
	t.AddRow(columns...)
	return t
}

// AddRow adds one cell to each column.
func (t Table) AddRow(cells ...any) {
	for i, cell := range cells {
		end := "\t"
		if i == len(cells)-1 {
			end = "\n"
		}
		fmt.Fprint(t.w, cell, end) // it buffers: Print has the error
	}
}

// Print writes the table.
func (t Table) Print() error { return t.w.Flush() }

// FormatAge formats the time since an event as kubectl does; "-" if it never happened.
func FormatAge(at, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(at)))
}

// OrDash returns the text of a cell, "-" for none.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

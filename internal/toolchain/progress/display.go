package progress

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// progressInterval is the interval of progress lines where lines cannot be rewritten, as in a CI log.
const progressInterval = 10 * time.Second

// A Display shows one build's progress: a bar on a terminal, else a line at intervals.
type Display struct {
	out  io.Writer
	stop context.CancelFunc
	ctx  context.Context //nolint:containedctx // lives as long as one call of compileAll, which made it
	work errgroup.Group

	mu           sync.Mutex
	meter        *Meter    // guarded by mu
	began        time.Time // guarded by mu; zero before start
	lastDownload time.Time // guarded by mu; when the last download line was written
	names        []string  // guarded by mu

	bars *mpb.Progress // nil where there is no terminal
	bar  *mpb.Bar
}

// NewDisplay creates the display of a meter. It ends with ctx, or with Close.
func NewDisplay(ctx context.Context, out io.Writer, m *Meter) *Display {
	ctx, stop := context.WithCancel(ctx)
	return &Display{out: out, meter: m, ctx: ctx, stop: stop}
}

// PrintNote writes a line; of a rapid series, such as downloads, it writes one line at intervals.
func (d *Display) PrintNote(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if strings.Contains(text, "downloading") {
		if time.Since(d.lastDownload) < progressInterval/5 {
			return
		}
		d.lastDownload = time.Now()
	}
	if d.bars != nil {
		fmt.Fprintln(d.bars, text) // above the bar
		return
	}
	if d.began.IsZero() && !strings.Contains(text, "downloading") && !strings.Contains(text, "changed") {
		return // planning takes a second; only downloads are worth a line
	}
	fmt.Fprintln(d.out, text)
}

// AddJob adds a job's plan.
func (d *Display) AddJob(name string, p Plan) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meter.AddPlan(name, p)
	d.names = append(d.names, name)
}

// Start announces the work and begins to show progress.
func (d *Display) Start(where string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.began = time.Now()
	fmt.Fprintf(d.out, "building %s: %d packages to compile, %s on %d cores; kept in %s\n",
		strings.Join(d.names, ", "), len(d.meter.cost), RoundDuration(d.meter.TimeLeft(0)), runtime.GOMAXPROCS(0), where)
	if file, ok := d.out.(*os.File); ok && isTerminal(file) {
		d.startBar(file)
		return
	}
	d.work.Go(func() error {
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case <-d.ctx.Done():
				return nil
			case <-tick.C:
				fmt.Fprintln(d.out, d.progressLine())
			}
		}
	})
}

func (d *Display) startBar(file *os.File) {
	const steps = 1000 // finer than any terminal is wide
	d.bars = mpb.NewWithContext(d.ctx, mpb.WithOutput(file), mpb.WithWidth(40))
	d.bar = d.bars.AddBar(steps,
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Percentage(decor.WCSyncSpace)),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return d.statusText() })),
	)
}

// statusText is the text beside the bar.
func (d *Display) statusText() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprintf(" %s left  %s %s", RoundDuration(d.meter.TimeLeft(time.Since(d.began))), d.meter.verb, shortenPath(d.meter.current))
}

func (d *Display) progressLine() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprintf("%3.0f %%, %s left, %s %s",
		100*d.meter.Fraction(), RoundDuration(d.meter.TimeLeft(time.Since(d.began))), d.meter.verb, d.meter.current)
}

// ObserveLine handles a line of the go command and reports whether it names a package.
func (d *Display) ObserveLine(line string) bool {
	d.mu.Lock()
	known := d.meter.ObservePackage(line)
	fraction, bar := d.meter.Fraction(), d.bar
	d.mu.Unlock()
	if known && bar != nil {
		bar.SetCurrent(int64(fraction * 999)) // finish makes the last step: mpb takes a full bar for done
	}
	return known
}

// BeginJob shows that a job has begun.
func (d *Display) BeginJob(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meter.beginJob(name)
}

// FinishJob shows that a job is done.
func (d *Display) FinishJob(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meter.FinishJob(name)
}

// Finish shows that all is done, and how long it took.
func (d *Display) Finish(took time.Duration) {
	d.Close()
	fmt.Fprintf(d.out, "built %s in %s\n", strings.Join(d.names, ", "), took.Round(100*time.Millisecond))
}

// Close stops the display. It may be called twice, and returns when nothing writes to out any more.
func (d *Display) Close() {
	if d.bar != nil {
		d.bar.Abort(true)
	}
	d.stop()
	if d.bars != nil {
		d.bars.Shutdown()
	}
	_ = d.work.Wait()
}

// RoundDuration rounds an estimate to its precision.
func RoundDuration(t time.Duration) string {
	switch {
	case t < 10*time.Second:
		return "a few seconds"
	case t < 2*time.Minute:
		return fmt.Sprintf("about %.0f s", max(10, t.Round(10*time.Second).Seconds()))
	default:
		return fmt.Sprintf("about %.0f min", t.Minutes())
	}
}

// shortenPath keeps the end of an import path, which is more informative than its host.
func shortenPath(path string) string {
	const most = 40 // leaves room for bar and times in 120 columns
	if len(path) <= most {
		return path
	}
	return "…" + path[len(path)-most+1:]
}

// isTerminal reports whether file is a terminal of known width: without a width a bar would show nothing.
func isTerminal(file *os.File) bool {
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	return err == nil && size.Col > 0
}

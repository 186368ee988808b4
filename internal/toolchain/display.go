package toolchain

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

// A progressDisplay shows one build's progress: a bar on a terminal, else a line at intervals.
type progressDisplay struct {
	out  io.Writer
	stop context.CancelFunc
	ctx  context.Context //nolint:containedctx // lives as long as one call of compileAll, which made it
	work errgroup.Group

	mu           sync.Mutex
	meter        *meter    // guarded by mu
	began        time.Time // guarded by mu; zero before start
	lastDownload time.Time // guarded by mu; when the last download line was written
	names        []string  // guarded by mu

	bars *mpb.Progress // nil where there is no terminal
	bar  *mpb.Bar
}

func newProgressDisplay(ctx context.Context, out io.Writer, m *meter) *progressDisplay {
	ctx, stop := context.WithCancel(ctx)
	return &progressDisplay{out: out, meter: m, ctx: ctx, stop: stop}
}

// printNote writes a line; of a rapid series, such as downloads, it writes one line at intervals.
func (d *progressDisplay) printNote(text string) {
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

func (d *progressDisplay) addJob(name string, p buildPlan) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meter.addPlan(name, p)
	d.names = append(d.names, name)
}

// start announces the work and begins to show progress.
func (d *progressDisplay) start(where string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.began = time.Now()
	fmt.Fprintf(d.out, "building %s: %d packages to compile, %s on %d cores; kept in %s\n",
		strings.Join(d.names, ", "), len(d.meter.cost), roundDuration(d.meter.timeLeft(0)), runtime.GOMAXPROCS(0), where)
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

func (d *progressDisplay) startBar(file *os.File) {
	const steps = 1000 // finer than any terminal is wide
	d.bars = mpb.NewWithContext(d.ctx, mpb.WithOutput(file), mpb.WithWidth(40))
	d.bar = d.bars.AddBar(steps,
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Percentage(decor.WCSyncSpace)),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return d.statusText() })),
	)
}

// statusText is the text beside the bar.
func (d *progressDisplay) statusText() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprintf(" %s left  %s %s", roundDuration(d.meter.timeLeft(time.Since(d.began))), d.meter.verb, shortenPath(d.meter.current))
}

func (d *progressDisplay) progressLine() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprintf("%3.0f %%, %s left, %s %s",
		100*d.meter.fraction(), roundDuration(d.meter.timeLeft(time.Since(d.began))), d.meter.verb, d.meter.current)
}

// observeLine handles a line of the go command and reports whether it names a package.
func (d *progressDisplay) observeLine(line string) bool {
	d.mu.Lock()
	known := d.meter.observePackage(line)
	fraction, bar := d.meter.fraction(), d.bar
	d.mu.Unlock()
	if known && bar != nil {
		bar.SetCurrent(int64(fraction * 999)) // finish makes the last step: mpb takes a full bar for done
	}
	return known
}

func (d *progressDisplay) beginJob(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meter.beginJob(name)
}

func (d *progressDisplay) finishJob(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meter.finishJob(name)
}

func (d *progressDisplay) finish(took time.Duration) {
	d.close()
	fmt.Fprintf(d.out, "built %s in %s\n", strings.Join(d.names, ", "), took.Round(100*time.Millisecond))
}

// close stops the display. It may be called twice, and returns when nothing writes to out any more.
func (d *progressDisplay) close() {
	if d.bar != nil {
		d.bar.Abort(true)
	}
	d.stop()
	if d.bars != nil {
		d.bars.Shutdown()
	}
	_ = d.work.Wait()
}

// roundDuration rounds an estimate to its precision.
func roundDuration(t time.Duration) string {
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

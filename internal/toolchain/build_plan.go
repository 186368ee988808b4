package toolchain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A buildPlan is what the compiler still has to do for a job, in CPU seconds of the machine the rates were measured on.
type buildPlan struct {
	compile map[string]float64 // import path → seconds; a program's own package includes its link
	mains   map[string]bool    // those of compile that are linked
}

const (
	// Kubernetes: 104 MB of Go in 2738 packages took 690 CPU-s, of which 10 linked (2 cores, Go 1.26.8).
	compilePerByte = 680.0 / 104e6
	linkPerByte    = 20.0 / 104e6 // counted twice, as it keeps one core busy and the other waiting
	// perPackage is what starting the compiler and the assembler costs; without it many small packages look free.
	perPackage = 0.03
)

// listedPackage is the part of `go list -json` that a plan needs.
type listedPackage struct {
	ImportPath, Dir, Name string
	GoFiles, CgoFiles     []string
	Stale, DepOnly        bool
}

// planJob asks the go command which packages its cache lacks. On a fresh machine this downloads the modules.
func (b *builder) planJob(ctx context.Context, j *job, show *progressDisplay) error {
	// Without EmbedFiles go leaves embedded files out of its reckoning and calls what uses them stale.
	args := []string{"list", "-deps", "-json=ImportPath,Dir,Name,GoFiles,CgoFiles,EmbedFiles,Stale,DepOnly"}
	if j.tags != "" {
		args = append(args, "-tags", j.tags)
	}
	cmd := b.goCommand(ctx, j.recipe, append(args, j.packages...)...)
	var said lastLines
	fetched := 0
	cmd.Stderr = &lineWriter{each: func(line string) {
		if module, ok := strings.CutPrefix(line, "go: downloading "); ok {
			fetched++
			show.printNote(fmt.Sprintf("%s: downloading modules, %d of at most %d: %s", j.name, fetched, b.countModules(j.recipe), module))
			return
		}
		said.add(line)
	}}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("build %s: %w", j.name, err)
	}
	if err := cmd.Start(); err != nil {
		return b.explainFailure(ctx, j.recipe, "list", err, nil)
	}
	packages, decodeErr := decodeListed(stdout)
	if err := cmd.Wait(); err != nil {
		return b.explainFailure(ctx, j.recipe, "list", err, said.kept)
	}
	if decodeErr != nil {
		return fmt.Errorf("build %s: read go list: %w", j.name, decodeErr)
	}
	j.plan = estimateCosts(packages, sizeOf)
	show.addJob(j.name, j.plan)
	return nil
}

func decodeListed(r io.Reader) ([]listedPackage, error) {
	var all []listedPackage
	for dec := json.NewDecoder(r); ; {
		var p listedPackage
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			_, _ = io.Copy(io.Discard, r) // or go would block on a full pipe
			return nil, err
		}
		all = append(all, p)
	}
}

// estimateCosts guesses the cost of each package that is to be compiled from the size of its sources, and of each link from
// the size of all.
func estimateCosts(packages []listedPackage, size func(dir, file string) int64) buildPlan {
	p := buildPlan{compile: map[string]float64{}, mains: map[string]bool{}}
	var total, mains float64
	for _, pkg := range packages {
		var bytes float64
		for _, f := range append(pkg.GoFiles, pkg.CgoFiles...) {
			bytes += float64(size(pkg.Dir, f))
		}
		total += bytes
		if pkg.Name == "main" && !pkg.DepOnly {
			mains++
		}
		if pkg.Stale {
			p.compile[pkg.ImportPath] = perPackage + bytes*compilePerByte
		}
	}
	for _, pkg := range packages {
		if pkg.Name == "main" && !pkg.DepOnly {
			p.compile[pkg.ImportPath] += total * linkPerByte / mains
			p.mains[pkg.ImportPath] = true
		}
	}
	return p
}

// sizeOf is 0 for what cannot be looked at: a wrong estimate is better than a failed build. Generated files of cgo
// have absolute names in Go's cache.
func sizeOf(dir, file string) int64 {
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// countModules counts the zips in go.sum: the most that a first run downloads.
func (b *builder) countModules(r recipe) int {
	content, err := os.ReadFile(filepath.Join(b.tree, r.module, "go.sum"))
	if err != nil {
		return 0
	}
	n := 0
	for line := range strings.Lines(string(content)) {
		if !strings.Contains(line, "/go.mod h1:") {
			n++
		}
	}
	return n
}

// warnOfSpace tells when the disk of Go's build cache looks too small, before minutes are spent to find out.
func (b *builder) warnOfSpace(ctx context.Context, r recipe, work float64) {
	const perSecond = 6e6 // bytes that a CPU second of compiling leaves there: 4 GB for the 690 s of Kubernetes
	dir, err := b.goOutput(ctx, r, "env", "GOCACHE")
	if err != nil {
		return // the build itself will say it better
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(strings.TrimSpace(dir), &fs); err != nil {
		return // not made yet
	}
	free, need := float64(fs.Bavail)*float64(fs.Bsize), work*perSecond
	if free < need {
		fmt.Fprintf(b.out, "warning: %s has %.1f GB free, and this build may fill about %.1f GB: free some, or set GOCACHE\n",
			strings.TrimSpace(dir), free/1e9, need/1e9)
	}
}

// compileJob builds a job's packages into dir and does what the recipe wants done after.
func (b *builder) compileJob(ctx context.Context, j job, dir string, show *progressDisplay) error {
	ldflags, err := linkerFlags(ctx, b.tree, j.recipe)
	if err != nil {
		return fmt.Errorf("build %s: %w", j.name, err)
	}
	args := []string{"build", "-v", "-ldflags", ldflags}
	if j.tags != "" {
		args = append(args, "-tags", j.tags)
	}
	args = append(args, "-o", dir+string(filepath.Separator))
	cmd := b.goCommand(ctx, j.recipe, append(args, j.packages...)...)
	var said lastLines
	cmd.Stderr = &lineWriter{each: func(line string) {
		if !show.observeLine(line) && !strings.HasPrefix(line, "go: downloading ") {
			said.add(line)
		}
	}}
	show.beginJob(j.name)
	if err := cmd.Run(); err != nil {
		return b.explainFailure(ctx, j.recipe, "build", err, said.kept)
	}
	show.finishJob(j.name)
	if len(j.write) > 0 {
		if err := b.runWriter(ctx, j, dir); err != nil {
			return err
		}
	}
	for link, target := range j.links {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			return fmt.Errorf("build %s: %w", j.name, err)
		}
	}
	return nil
}

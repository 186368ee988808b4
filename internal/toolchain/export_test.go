package toolchain

import (
	"context"
	"io"
	"slices"
	"time"
)

// Unexported functions for the tests.

type (
	Cache  struct{ cache }
	Meter  struct{ *meter }
	Recipe struct{ recipe }
	Listed = listedPackage
)

var (
	HashFiles       = hashFiles
	KeyOf           = keyOf
	FindTree        = findTree
	AdviceFor       = adviceFor
	RoundDuration   = roundDuration
	MissingForC     = missingForC
	RequiredVersion = requiredVersion
)

const ContainerdVersion = containerdVersion

func NewCache(dir string) Cache { return Cache{cache{dir: dir}} }

func (c Cache) EntryPath(name, text string) string { return c.entryPath(name, text) }
func (c Cache) TouchEntry(entry string) bool       { return c.touchEntry(entry) }
func (c Cache) MakeTemp(name string) (string, error) {
	return c.makeTemp(name)
}

func (c Cache) InstallEntry(temp, entry, text string) error { return c.installEntry(temp, entry, text) }
func (c Cache) Prune(name string, keep int, used string)    { c.prune(name, keep, used) }
func (c Cache) Lock(ctx context.Context, name string, out io.Writer) (func(), error) {
	return c.lock(ctx, name, out)
}

func NewMeter(parallel int, compile map[string]float64) Meter {
	m := newMeter()
	m.parallel = parallel
	m.addPlan("job", buildPlan{compile: compile})
	return Meter{m}
}

func (m Meter) ObservePackage(path string) bool        { return m.observePackage(path) }
func (m Meter) FinishJob()                             { m.finishJob("job") }
func (m Meter) Fraction() float64                      { return m.fraction() }
func (m Meter) TimeLeft(d time.Duration) time.Duration { return m.timeLeft(d) }

func AllRecipes() []Recipe {
	var all []Recipe
	for _, r := range []recipe{
		kubeRecipe(), containerdRecipe(), runcRecipe(), cniRecipe(), imagesRecipe(), corednsRecipe(), natsRecipe(), frondRecipe(),
		suiteRecipe(), testImagesRecipe(), controlPlaneRecipe("1.36"),
	} {
		all = append(all, Recipe{r})
	}
	return all
}

func RecipeNamed(name string) Recipe {
	all := AllRecipes()
	return all[slices.IndexFunc(all, func(r Recipe) bool { return r.name == name })]
}

func (r Recipe) Key(goEnv, files []string) string { return keyOf(keyText(r.recipe, goEnv, files)) }
func (r Recipe) Name() string                     { return r.name }
func (r Recipe) Module() string                   { return r.module }
func (r Recipe) Packages() []string               { return r.packages }

func EstimateCosts(packages []Listed, size int64) map[string]float64 {
	return estimateCosts(packages, func(string, string) int64 { return size }).compile
}

func NewLineWriter(each func(string)) io.Writer { return &lineWriter{each: each} }

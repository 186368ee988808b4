package toolchain

import (
	"context"
	"io"
	"slices"
	"time"
)

// What the tests need of the inside.

type (
	Cache  struct{ cache }
	Meter  struct{ *meter }
	Recipe struct{ recipe }
	Listed = listed
)

var (
	HashFiles   = hashFiles
	KeyOf       = keyOf
	FindTree    = findTree
	AdviceFor   = adviceFor
	Rough       = rough
	MissingForC = missingForC
	Required    = required
)

const ContainerdVersion = containerdVersion

func NewCache(dir string) Cache { return Cache{cache{dir: dir}} }

func (c Cache) Entry(name, text string) string { return c.entry(name, text) }
func (c Cache) Use(entry string) bool          { return c.use(entry) }
func (c Cache) Temp(name string) (string, error) {
	return c.temp(name)
}
func (c Cache) Install(temp, entry, text string) error   { return c.install(temp, entry, text) }
func (c Cache) Prune(name string, keep int, used string) { c.prune(name, keep, used) }
func (c Cache) Lock(ctx context.Context, name string, out io.Writer) (func(), error) {
	return c.lock(ctx, name, out)
}

func NewMeter(parallel int, compile map[string]float64) Meter {
	m := newMeter()
	m.parallel = parallel
	m.add("job", plan{compile: compile})
	return Meter{m}
}

func (m Meter) Named(path string) bool             { return m.named(path) }
func (m Meter) Built()                             { m.built("job") }
func (m Meter) Fraction() float64                  { return m.fraction() }
func (m Meter) Left(d time.Duration) time.Duration { return m.left(d) }

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

func Weigh(packages []Listed, size int64) map[string]float64 {
	return weigh(packages, func(string, string) int64 { return size }).compile
}

func Lines(each func(string)) io.Writer { return &lines{each: each} }

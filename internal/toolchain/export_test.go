package toolchain

import (
	"context"
	"io"
	"path/filepath"
	"slices"

	"github.com/frond-edge/frond/internal/toolchain/cache"
)

// Unexported functions for the tests.

type (
	Recipe struct{ recipe }
	Listed = listedPackage
)

var (
	HashFiles       = hashFiles
	FindTree        = findTree
	AdviceFor       = adviceFor
	MissingForC     = missingForC
	RequiredVersion = requiredVersion
)

const ContainerdVersion = containerdVersion

func AllRecipes() []Recipe {
	var all []Recipe
	for _, r := range []recipe{
		kubeRecipe(), containerdRecipe(), runcRecipe(), cniRecipe(), imagesRecipe(), corednsRecipe(), natsRecipe(), frondRecipe(),
		suiteRecipe(), controlPlaneRecipe("1.36"),
	} {
		all = append(all, Recipe{r})
	}
	return all
}

func RecipeNamed(name string) Recipe {
	all := AllRecipes()
	return all[slices.IndexFunc(all, func(r Recipe) bool { return r.name == name })]
}

func (r Recipe) Key(goEnv, files []string) string { return cache.Key(keyText(r.recipe, goEnv, files)) }
func (r Recipe) Name() string                     { return r.name }
func (r Recipe) Module() string                   { return r.module }
func (r Recipe) Packages() []string               { return r.packages }

func EstimateCosts(packages []Listed, size int64) map[string]float64 {
	return estimateCosts(packages, func(string, string) int64 { return size }).Compile
}

func NewLineWriter(each func(string)) io.Writer { return &lineWriter{each: each} }

// EnsureBusybox returns where busybox is in the cache.
func EnsureBusybox(ctx context.Context, c cache.Cache) (string, error) {
	err := packageInstaller{io.Discard}.ensureBusybox(ctx, c)
	return filepath.Join(busyboxEntry(c), busyboxName), err
}

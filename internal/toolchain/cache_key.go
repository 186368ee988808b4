package toolchain

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// formatVersion goes into each key. Raise it when the meaning of a recipe changes without its text.
const formatVersion = "frond toolchain 1"

func keyText(r recipe, goEnv, files []string) string {
	var t strings.Builder
	fmt.Fprintln(&t, formatVersion)
	fmt.Fprintln(&t, "name", r.name)
	fmt.Fprintln(&t, "go", strings.Join(goEnv, " "))
	fmt.Fprintln(&t, "flags", strings.Join(r.buildEnv(), " "))
	fmt.Fprintln(&t, "module", r.module)
	fmt.Fprintln(&t, "packages", strings.Join(r.packages, " "))
	fmt.Fprintln(&t, "ldflags", strings.Join(append([]string{r.linkerFlags()}, r.stamps...), " "))
	fmt.Fprintln(&t, "tags", r.tags)
	fmt.Fprintln(&t, "write", r.write)
	links := make([]string, 0, len(r.links))
	for name, target := range r.links {
		links = append(links, name+"="+target)
	}
	slices.Sort(links)
	fmt.Fprintln(&t, "links", strings.Join(links, " "))
	for _, f := range files {
		fmt.Fprintln(&t, "file", f)
	}
	return t.String()
}

// hashFiles returns "digest path" for each file below the inputs that can change a program, sorted by path.
func hashFiles(tree string, inputs []string, outside ...string) ([]string, error) {
	var lines []string
	for _, input := range inputs {
		paths, err := sourceFiles(filepath.Join(tree, input))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			rel, err := filepath.Rel(tree, path)
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(outside, func(dir string) bool { return strings.HasPrefix(rel, dir+string(filepath.Separator)) }) {
				continue
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			lines = append(lines, fmt.Sprintf("%x %s", sha256.Sum256(content), filepath.ToSlash(rel)))
		}
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[65:], b[65:]) }) // 64 digits and a space
	return slices.Compact(lines), nil
}

// sourceFiles lists Go files, go.mod, go.sum, and files that a package could embed: other files beside or below Go files, but
// not in the top folder, which also holds unrelated files. It omits tests, their data, Markdown, hidden
// folders and nested modules: editing those must not rebuild anything.
func sourceFiles(top string) ([]string, error) {
	if info, err := os.Stat(top); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return []string{top}, nil
	}
	var paths []string
	holdsGo := map[string]bool{top: false}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		switch {
		case path == top:
			return nil
		case d.IsDir():
			if skipFolder(path, name) {
				return filepath.SkipDir
			}
			has, err := filepath.Glob(filepath.Join(path, "*.go"))
			holdsGo[path] = len(has) > 0 || holdsGo[filepath.Dir(path)]
			return err
		case !d.Type().IsRegular() || strings.HasPrefix(name, ".") || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".md"):
			return nil
		case strings.HasSuffix(name, ".go"), holdsGo[filepath.Dir(path)], filepath.Dir(path) == top && (name == "go.mod" || name == "go.sum"):
			paths = append(paths, path)
		}
		return nil
	})
	return paths, err
}

func skipFolder(path, name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "docs" {
		return true
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil
}

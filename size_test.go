package frond_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// The limits of a package and of a type. Past them there are several things under one name.
const (
	maxPackageLines = 1500
	maxPackageFiles = 25
	maxTypeMethods  = 25
	maxTypeFiles    = 2
)

// largePackages and largeTypes are the exceptions. These lists only become shorter.
//
// The types of edged/hollow stay: a CRI server is one type of 26 calls by its definition.
var (
	largePackages = map[string]bool{}
	largeTypes    = map[string]bool{
		"edged/hollow.Runtime":        true,
		"edged/hollow.runtimeService": true,
	}
)

// methodCount says how many methods a type has, and in which files.
type methodCount struct {
	methods int
	files   map[string]bool
}

// countMethods returns the methods of each type that a file declares, and the number of its lines.
func countMethods(t *testing.T, file string, types map[string]*methodCount) int {
	t.Helper()
	source := read(t, file)
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, declaration := range parsed.Decls {
		method, ok := declaration.(*ast.FuncDecl)
		if !ok || method.Recv == nil {
			continue
		}
		name := receiverType(method.Recv.List[0].Type)
		if types[name] == nil {
			types[name] = &methodCount{files: map[string]bool{}}
		}
		types[name].methods++
		types[name].files[file] = true
	}
	return bytes.Count([]byte(source), []byte("\n"))
}

// receiverType returns the name of a method's type.
func receiverType(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.StarExpr:
		return receiverType(e.X)
	case *ast.IndexExpr:
		return receiverType(e.X)
	case *ast.IndexListExpr:
		return receiverType(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// TestLayout_Sizes checks the limits of packages and types, and that no exception is listed in vain.
func TestLayout_Sizes(t *testing.T) {
	usedPackages, usedTypes := map[string]bool{}, map[string]bool{}
	for _, p := range listPackages(t, "./...") {
		pkg, _ := inModule(p.ImportPath)
		lines, files, types := 0, 0, map[string]*methodCount{}
		for _, file := range p.GoFiles {
			if strings.HasPrefix(file, "zz_generated") || strings.HasSuffix(file, ".pb.go") {
				continue
			}
			lines += countMethods(t, filepath.Join(pkg, file), types)
			files++
		}
		if lines > maxPackageLines || files > maxPackageFiles {
			usedPackages[pkg] = true
			if !largePackages[pkg] {
				t.Errorf("%s has %d lines in %d files: more than %d or %d", pkg, lines, files, maxPackageLines, maxPackageFiles)
			}
		}
		for name, count := range types {
			if count.methods <= maxTypeMethods && len(count.files) <= maxTypeFiles {
				continue
			}
			usedTypes[pkg+"."+name] = true
			if !largeTypes[pkg+"."+name] {
				t.Errorf("%s.%s has %d methods in %d files: more than %d or %d", pkg, name, count.methods, len(count.files), maxTypeMethods, maxTypeFiles)
			}
		}
	}
	for name := range largePackages {
		if !usedPackages[name] {
			t.Errorf("%s is listed as a large package and is none", name)
		}
	}
	for name := range largeTypes {
		if !usedTypes[name] {
			t.Errorf("%s is listed as a large type and is none", name)
		}
	}
}

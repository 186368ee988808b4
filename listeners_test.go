package frond_test

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// All TLS is 1.3 at least, but for devices at the MQTT broker (certs.Listener.AllowTLS12). No client skips verification, and no client may hold a server's connection by staying silent.
func TestConnectionsAreStrict(t *testing.T) {
	need := map[string][]string{
		"tls.Config": {"MinVersion"}, "http.Server": {"ReadHeaderTimeout", "IdleTimeout"},
	}
	files, found := token.NewFileSet(), 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || path == "tools"): // programs of demos, in pods
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			literal, ok := node.(*ast.CompositeLit)
			if !ok {
				return true
			}
			kind := text(files, literal.Type)
			fields, at := fieldsOf(files, literal), files.Position(literal.Pos())
			if need[kind] != nil {
				found++
			}
			for _, field := range need[kind] {
				if fields[field] == "" {
					t.Errorf("%s: %s without %s", at, kind, field)
				}
			}
			if version := fields["MinVersion"]; kind == "tls.Config" && !strings.Contains(version, "tls.VersionTLS13") {
				t.Errorf("%s: MinVersion is %s", at, version)
			}
			if _, skips := fields["InsecureSkipVerify"]; skips {
				t.Errorf("%s: InsecureSkipVerify", at)
			}
			return true
		})
		return nil
	})
	if err != nil || found < 10 {
		t.Errorf("%d places looked at, %v", found, err)
	}
}

func text(files *token.FileSet, node ast.Node) string {
	var out bytes.Buffer
	if node == nil || format.Node(&out, files, node) != nil {
		return ""
	}
	return out.String()
}

func fieldsOf(files *token.FileSet, literal *ast.CompositeLit) map[string]string {
	fields := map[string]string{}
	for _, e := range literal.Elts {
		if pair, ok := e.(*ast.KeyValueExpr); ok {
			fields[text(files, pair.Key)] = text(files, pair.Value)
		}
	}
	return fields
}

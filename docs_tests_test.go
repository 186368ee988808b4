package frond_test

import (
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testFunctions returns the names of all test, fuzz and benchmark functions of the tree.
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	function, names := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`), map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			for _, match := range function.FindAllStringSubmatch(read(t, path), -1) {
				names[match[1]] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestDocumentsNameTestsThatExist looks up every test that a document names; a name that ends with … is the beginning of several. Records may name tests
// that have gone since.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	tests, named := testFunctions(t), regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)(…?)`")
	for _, document := range documents(t) {
		if strings.HasPrefix(document, filepath.Join("docs", "design")) {
			continue
		}
		for _, match := range named.FindAllStringSubmatch(read(t, document), -1) {
			exists := tests[match[1]]
			if match[2] != "" {
				exists = slices.ContainsFunc(slices.Sorted(maps.Keys(tests)), func(name string) bool { return strings.HasPrefix(name, match[1]) })
			}
			if !exists {
				t.Errorf("%s names the test %s, which is not there", document, match[1])
			}
		}
	}
}

// TestBadInputIsTested: each row of the page of bad input names the test that shows it.
func TestBadInputIsTested(t *testing.T) {
	rows := 0
	for line := range strings.Lines(read(t, "docs/operations/devices-bad-input.md")) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| input |") {
			continue
		}
		rows++
		if cells := strings.Split(strings.TrimSpace(line), " | "); len(cells) != 4 || !strings.Contains(cells[3], "`Test") {
			t.Errorf("this row has no test in its fourth column: %s", line)
		}
	}
	if rows < 25 {
		t.Errorf("the page has %d rows", rows)
	}
}

package frond_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/config"
)

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// documents returns all Markdown files of the tree.
func documents(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case strings.HasSuffix(path, ".md"):
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestReadmeIsShort(t *testing.T) {
	if n := strings.Count(read(t, "README.md"), "\n"); n >= 100 {
		t.Errorf("README.md has %d lines, want fewer than 100", n)
	}
}

// TestLinksOfDocuments follows every relative link, to its heading.
func TestLinksOfDocuments(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]*)#?([^)]*)\)`)
	for _, document := range documents(t) {
		for _, match := range link.FindAllStringSubmatch(read(t, document), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			page := document
			if match[1] != "" {
				page = filepath.Join(filepath.Dir(document), match[1])
			}
			if _, err := os.Stat(page); err != nil {
				t.Errorf("%s links to %s: %v", document, match[1], err)
			} else if match[2] != "" && !slices.Contains(anchors(read(t, page)), match[2]) {
				t.Errorf("%s links to %s, which has no heading %s", document, page, match[2])
			}
		}
	}
}

// anchors returns the link targets of a page's headings.
func anchors(page string) []string {
	var names []string
	mark := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		names = append(names, strings.ReplaceAll(mark.ReplaceAllString(strings.ToLower(heading[1]), ""), " ", "-"))
	}
	return names
}

// TestDocumentsNameTargetsThatExist looks up every `make TARGET` in the Makefile.
func TestDocumentsNameTargetsThatExist(t *testing.T) {
	makefile := read(t, "Makefile")
	target := regexp.MustCompile("(?m)(?:`|^)make ([a-z-]+)")
	for _, document := range documents(t) {
		for _, match := range target.FindAllStringSubmatch(read(t, document), -1) {
			if !strings.Contains(makefile, "\n"+match[1]+":") {
				t.Errorf("%s names `make %s`, which the Makefile does not have", document, match[1])
			}
		}
	}
}

// TestConfigurationIsDocumented looks for each field of both configuration files.
func TestConfigurationIsDocumented(t *testing.T) {
	document := read(t, "docs/operations/configuration.md")
	for _, file := range []any{config.CloudCore{}, config.EdgeCore{}} {
		for _, field := range fields("", reflect.TypeOf(file)) {
			if !strings.Contains(document, "`"+field+"`") {
				t.Errorf("docs/operations/configuration.md does not explain %s of %T", field, file)
			}
			if slices.Contains([]string{"y", "n", "yes", "no", "on", "off"}, field[strings.LastIndex(field, ".")+1:]) {
				t.Errorf("%s of %T is a truth value to YAML, and no key", field, file)
			}
		}
	}
}

// fields lists the dotted names of a configuration's fields.
func fields(prefix string, of reflect.Type) []string {
	var names []string
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Type.Kind() == reflect.Struct {
			names = append(names, fields(prefix+name+".", field.Type)...)
		} else {
			names = append(names, prefix+name)
		}
	}
	return names
}

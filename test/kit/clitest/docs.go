// Package clitest runs command lines in tests, and compares the documents with their commands.
package clitest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Program is one command line.
type Program struct {
	// Name is what a user writes before the words of its commands: "frond", or "frond dev".
	Name string
	// Root returns the tree of its commands.
	Root func() *cobra.Command
	// Tree is the path of the repository.
	Tree string
	// Except is a command that another Program documents; "" for none.
	Except string
}

// pages returns the documents for users by their path in the repository. Design records are left out, because they describe the state at
// their time.
func (p Program) pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, folder := range []string{"README.md", "CONTRIBUTING.md", "docs", "leaf", "edged", "streams"} {
		err := filepath.WalkDir(filepath.Join(p.Tree, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".md" || strings.Contains(path, "docs/design/") {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(p.Tree, path)
			found[name] = string(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// commandLines returns the command lines of the program in code spans and blocks, split into words, without its name.
func (p Program) commandLines(page string) [][]string {
	var lines [][]string
	code := regexp.MustCompile("(?s)```.*?```|`[^`\n]+`")
	command := regexp.MustCompile(`(?:^|[\s$;|(` + "`" + `])` + p.Name + `( [^\n` + "`" + `)|;#]+)`)
	for _, block := range code.FindAllString(page, -1) {
		for _, match := range command.FindAllStringSubmatch(block, -1) {
			before, _, _ := strings.Cut(match[1], " -- ")
			if words := strings.Fields(before); len(words) > 0 && (p.Except == "" || words[0] != p.Except) {
				lines = append(lines, words)
			}
		}
	}
	return lines
}

// CheckNamed looks up each command of the program, and each of its flags, that a document names, and expects at least so many.
func (p Program) CheckNamed(t *testing.T, atLeast int) {
	t.Helper()
	flag := regexp.MustCompile(`^\[?(--?[a-z][a-z-]*)`)
	seen := 0
	for path, page := range p.pages(t) {
		for _, words := range p.commandLines(page) {
			root := p.Root()
			root.InitDefaultCompletionCmd()
			cmd, _, err := root.Find(words)
			if words[0] == "…" || strings.HasPrefix(words[0], "--") {
				continue
			}
			if err != nil {
				t.Errorf("%s names %s %s: %v", path, p.Name, strings.Join(words, " "), err)
				continue
			}
			seen++
			cmd.InitDefaultHelpFlag()
			for _, word := range words {
				if match := flag.FindStringSubmatch(word); match != nil && !hasFlag(cmd, match[1]) {
					t.Errorf("%s names %s of %s, which has no such flag", path, match[1], cmd.CommandPath())
				}
			}
		}
	}
	if seen < atLeast {
		t.Errorf("only %d command lines were found", seen)
	}
}

// hasFlag looks for --long, or for each letter of -short.
func hasFlag(cmd *cobra.Command, flag string) bool {
	if name, long := strings.CutPrefix(flag, "--"); long {
		return cmd.Flag(name) != nil
	}
	for _, letter := range flag[1:] {
		if cmd.Flags().ShorthandLookup(string(letter)) == nil && cmd.InheritedFlags().ShorthandLookup(string(letter)) == nil {
			return false
		}
	}
	return true
}

// CheckDocumented looks for each command on the page of commands, and for the options that all commands share.
func (p Program) CheckDocumented(t *testing.T) {
	t.Helper()
	page := p.pages(t)["docs/operations/commands.md"]
	readsState := regexp.MustCompile("^(list|get|show|status|sync|store|version)$")
	var walk func(cmd *cobra.Command, name string)
	walk = func(cmd *cobra.Command, name string) {
		for _, sub := range cmd.Commands() {
			if sub.Name() != p.Except {
				walk(sub, name+" "+sub.Name())
			}
		}
		if !cmd.Runnable() || cmd.Hidden {
			return
		}
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/operations/commands.md does not name %s", name)
		}
		if cmd.Flags().Lookup("output") == nil && readsState.MatchString(cmd.Name()) {
			t.Errorf("%s shows something and has no -o json", name)
		}
	}
	walk(p.Root(), p.Name)
}

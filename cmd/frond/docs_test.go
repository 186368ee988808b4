package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// docPages are the documents for users. Design records are left out, because they describe the state at their time.
func docPages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, folder := range []string{"../../README.md", "../../CONTRIBUTING.md", "../../docs", "../../leaf", "../../edged", "../../streams"} {
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".md" || strings.Contains(path, "docs/design/") {
				return err
			}
			data, err := os.ReadFile(path)
			found[path] = string(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// commandLines returns the command lines of frond in code spans and blocks, split into words.
func commandLines(page string) [][]string {
	var lines [][]string
	code := regexp.MustCompile("(?s)```.*?```|`[^`\n]+`")
	command := regexp.MustCompile(`(?:^|[\s$;|(` + "`" + `])frond( [^\n` + "`" + `)|;#]+)`)
	for _, block := range code.FindAllString(page, -1) {
		for _, match := range command.FindAllStringSubmatch(block, -1) {
			before, _, _ := strings.Cut(match[1], " -- ")
			lines = append(lines, strings.Fields(before))
		}
	}
	return lines
}

// TestDocs_NamedCommandsExist looks up each command, and each of its flags, that a document names.
func TestDocs_NamedCommandsExist(t *testing.T) {
	flag := regexp.MustCompile(`^\[?(--?[a-z][a-z-]*)`)
	seen := 0
	for path, page := range docPages(t) {
		for _, words := range commandLines(page) {
			root := newRoot()
			root.InitDefaultCompletionCmd()
			cmd, _, err := root.Find(words)
			if words[0] == "…" || strings.HasPrefix(words[0], "--") {
				continue
			}
			if err != nil {
				t.Errorf("%s names frond %s: %v", path, strings.Join(words, " "), err)
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
	if seen < 100 {
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

// TestDocs_CommandsAreDocumented looks for each command on the page of commands, and for the options that all commands share.
func TestDocs_CommandsAreDocumented(t *testing.T) {
	page := docPages(t)["../../docs/operations/commands.md"]
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if !cmd.Runnable() || cmd.Hidden {
			return
		}
		if !strings.Contains(page, "`"+cmd.CommandPath()+"`") {
			t.Errorf("docs/operations/commands.md does not name %s", cmd.CommandPath())
		}
		if cmd.Flags().Lookup("output") == nil && regexp.MustCompile("^(list|get|show|status|sync|store|version)$").MatchString(cmd.Name()) {
			t.Errorf("%s shows something and has no -o json", cmd.CommandPath())
		}
	}
	walk(newRoot())
}

package subject

import (
	"fmt"
	"slices"
	"strings"
)

// AccountsConfig returns the accounts block of the configuration of a hub. users holds the entries of each
// account's list of users, in the syntax of the configuration.
func AccountsConfig(l Layout, users map[string][]string) string {
	all := Crossings(l)
	var b strings.Builder
	b.WriteString("accounts {\n")
	for _, name := range slices.Concat([]string{SystemAccount, AuthAccount, FrondAccount, LobbyAccount}, Cells(l.Cells)) {
		_, _ = fmt.Fprintf(&b, "  %s: {\n", name) // writes to memory
		if name == FrondAccount {
			b.WriteString("    jetstream: enabled\n")
			if mapping := l.layoutMapping(); mapping != "" {
				_, _ = fmt.Fprintf(&b, "    mappings: { %s }\n", mapping)
			}
		}
		writeList(&b, "users", users[name])
		writeList(&b, "exports", accountExports(all, name))
		writeList(&b, "imports", accountImports(all, name))
		b.WriteString("  }\n")
	}
	b.WriteString("}\n")
	return b.String()
}

func writeList(b *strings.Builder, name string, entries []string) {
	if len(entries) == 0 {
		return
	}
	_, _ = fmt.Fprintf(b, "    %s: [\n", name)
	for _, entry := range entries {
		_, _ = fmt.Fprintf(b, "      %s\n", entry)
	}
	b.WriteString("    ]\n")
}

// accountExports lists the exports of an account, each once and only to the accounts that import it.
func accountExports(all []Crossing, account string) []string {
	takers := map[string][]string{}
	var heads []string
	for _, c := range all {
		if c.From != account {
			continue
		}
		head := fmt.Sprintf("stream: %q", c.Subject)
		if c.Service {
			head = fmt.Sprintf("service: %q", c.Subject)
		}
		if c.ManyReplies {
			head += `, response_type: "stream"`
		}
		if takers[head] == nil {
			heads = append(heads, head)
		}
		takers[head] = append(takers[head], c.To)
	}
	for i, head := range heads {
		heads[i] = fmt.Sprintf("{ %s, accounts: [%s] }", head, strings.Join(takers[head], ", "))
	}
	return heads
}

func accountImports(all []Crossing, account string) []string {
	var lines []string
	for _, c := range all {
		if c.To != account {
			continue
		}
		kind, to := "stream", ""
		if c.Service {
			kind = "service"
		}
		if c.Local != c.Subject {
			to = fmt.Sprintf(", to: %q", c.Local)
		}
		lines = append(lines, fmt.Sprintf("{ %s: { account: %s, subject: %q }%s }", kind, c.From, c.Subject, to))
	}
	return lines
}

package frond_test

import (
	"encoding/json"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/config"
)

// sources returns the code below a folder, without tests.
func sources(t *testing.T, folder string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			all.WriteString(read(t, path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// handbook returns all pages for operators.
func handbook(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, document := range documents(t) {
		if strings.HasPrefix(document, "docs/operations/") {
			all.WriteString(read(t, document))
		}
	}
	return all.String()
}

// TestMetricsThatAreNamedExist looks for each metric in a page, an alert or the dashboard, by the end of its name: the code
// often adds the prefix. TestMetricsAreDocumented of test/e2e checks that each metric is on the page.
func TestMetricsThatAreNamedExist(t *testing.T) {
	code, metric := sources(t, "."), regexp.MustCompile(`frond_[a-z_]+[a-z]`)
	named := map[string][]string{}
	for _, file := range append(documents(t), "deploy/prometheus/alerts.yaml", "deploy/prometheus/dashboard.json") {
		for _, name := range metric.FindAllString(read(t, file), -1) {
			if name != "frond_io" { // the group frond.io in a subject
				named[name] = append(named[name], file)
			}
		}
	}
	for name, files := range named {
		whole := strings.TrimSuffix(name, "_bucket") // of a histogram
		_, short, _ := strings.Cut(whole, "_")
		_, end, _ := strings.Cut(short, "_")
		if !slices.ContainsFunc([]string{whole, short, end}, func(s string) bool { return strings.Contains(code, `"`+s+`"`) }) {
			t.Errorf("%s is named in %v and in no code", name, slices.Compact(files))
		}
	}
}

// TestConditionsAndEventsAreDocumented looks for each condition of a Node, its reasons, and the reasons of Events.
func TestConditionsAndEventsAreDocumented(t *testing.T) {
	pages := handbook(t)
	word := regexp.MustCompile(`"([A-Z][a-z]+(?:[A-Z][a-z]+)+)"|(?:Condition(?:True|False|Unknown), |reason = )"([A-Z]\w+)"`)
	for _, folder := range []string{"api/names", "controllers/nodes", "controllers/autonomy", "controllers/holds", "controllers/csrs", "cloud", "edged/diskmonitor", "edged/nodeidentity", "api/wire/deletion_hold.go"} {
		for _, match := range word.FindAllStringSubmatch(sources(t, folder), -1) {
			if name := match[1] + match[2]; name != "TokenKeys" && !strings.Contains(pages, "`"+name+"`") { // a kind that is never shown
				t.Errorf("no page of docs/operations explains %s of %s", name, folder)
			}
		}
	}
}

// TestIndexLeadsToEachPage checks that docs/README.md links to every page.
func TestIndexLeadsToEachPage(t *testing.T) {
	index := read(t, "docs/README.md")
	for _, document := range documents(t) {
		page, found := strings.CutPrefix(document, "docs/")
		if found && page != "README.md" && !strings.HasPrefix(page, "design/") && !strings.Contains(index, "]("+page+")") {
			t.Errorf("docs/README.md does not lead to %s", page)
		}
	}
}

// TestTourLinksToPackages checks that each link of doc.go names a package.
func TestTourLinksToPackages(t *testing.T) {
	links := regexp.MustCompile(`\[`+module+`/([^\]]+)\]`).FindAllStringSubmatch(read(t, "doc.go"), -1)
	if len(links) < 10 {
		t.Errorf("doc.go has only %d links", len(links))
	}
	for _, link := range links {
		if sources(t, link[1]) == "" {
			t.Errorf("doc.go links to %s, which is no package", link[1])
		}
	}
}

// TestAlertsLeadToAPage reads deploy/prometheus/alerts.yaml.
func TestAlertsLeadToAPage(t *testing.T) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/prometheus/alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	rules := 0
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			rules++
			read(t, "docs/operations/"+rule.Annotations["page"])
			if rule.Alert == "" || rule.Expr == "" || rule.Annotations["summary"] == "" {
				t.Errorf("an alert lacks its name, expression or summary: %+v", rule)
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) {
				t.Errorf("%s has the severity %q", rule.Alert, rule.Labels["severity"])
			}
		}
	}
	if rules == 0 || !json.Valid([]byte(read(t, "deploy/prometheus/dashboard.json"))) {
		t.Errorf("%d alerts, or a dashboard that is no JSON", rules)
	}
}

// TestExamplesOfConfigurationAreRead parses each YAML example for operators that is no Kubernetes object, as strictly as the programs do.
func TestExamplesOfConfigurationAreRead(t *testing.T) {
	read := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(handbook(t), -1) {
		if strings.Contains(block[1], "apiVersion:") || strings.HasPrefix(block[1], "spec:") {
			continue
		}
		read++
		cloud, edge := yaml.UnmarshalStrict([]byte(block[1]), &config.CloudCore{}), yaml.UnmarshalStrict([]byte(block[1]), &config.EdgeCore{})
		if cloud != nil && edge != nil {
			t.Errorf("neither cloudcore (%v) nor edgecore (%v) reads\n%s", cloud, edge, block[1])
		}
	}
	if read < 5 {
		t.Errorf("only %d examples were found", read)
	}
}

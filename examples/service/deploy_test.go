package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"
)

// compose is what the test looks at in compose.yaml.
type compose struct {
	Services map[string]struct {
		Image       string
		Build       struct{ Context, Dockerfile string }
		Environment map[string]string
		Ports       []string
		Volumes     []string
		DependsOn   map[string]any `yaml:"depends_on"`
	}
	Volumes map[string]any
}

func readYAML(t *testing.T, name string, to any) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err == nil {
		err = yaml.Unmarshal(text, to)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// What compose.yaml names is there: files, volumes, services, settings that the service takes.
func TestComposeFile(t *testing.T) {
	var c compose
	readYAML(t, "compose.yaml", &c)
	if names := slices.Sorted(maps.Keys(c.Services)); !slices.Equal(names, []string{"grafana", "postgres", "prometheus", "redis", "service"}) {
		t.Errorf("services: %q", names)
	}
	pinned := regexp.MustCompile(`^[a-z/]+:v?\d+\.\d+(\.\d+)?$`)
	for name, s := range c.Services {
		if s.Image == "" {
			if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if !pinned.MatchString(s.Image) {
			t.Errorf("%s: image %q has no version", name, s.Image)
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if _, isNamed := c.Volumes[source]; isNamed {
				continue
			}
			if info, err := os.Stat(source); err != nil || info.IsDir() {
				t.Errorf("%s: %s is no file: %v", name, source, err)
			}
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s: port %s is open to others", name, p)
			}
		}
		for d := range s.DependsOn {
			if _, ok := c.Services[d]; !ok {
				t.Errorf("%s depends on %s", name, d)
			}
		}
	}
	env := c.Services["service"].Environment
	asked := make(map[string]bool)
	if _, err := readConfig(func(name string) string { asked[name] = true; return env[name] }); err != nil {
		t.Error(err)
	}
	for name := range env {
		if !asked[name] {
			t.Errorf("the service has no setting %s", name)
		}
	}
}

// Prometheus finds the rules and the service; the rules ask for metrics that there are.
func TestPrometheusFiles(t *testing.T) {
	var c compose
	readYAML(t, "compose.yaml", &c)
	var p struct {
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			StaticConfigs []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, "deploy/prometheus.yml", &p)
	for _, file := range p.RuleFiles {
		if !slices.ContainsFunc(c.Services["prometheus"].Volumes, func(v string) bool { return strings.HasSuffix(v, ":"+file+":ro") }) {
			t.Errorf("nothing is mounted at %s", file)
		}
	}
	if target := p.ScrapeConfigs[0].StaticConfigs[0].Targets[0]; target != "service"+c.Services["service"].Environment["ADMIN_ADDR"] {
		t.Errorf("Prometheus asks %s", target)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations struct{ Summary, Action string }
			}
		}
	}
	readYAML(t, "deploy/alerts.yml", &rules)
	source, err := os.ReadFile("admin.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules.Groups[0].Rules {
		if r.Alert == "" || r.Annotations.Summary == "" || r.Annotations.Action == "" {
			t.Errorf("%+v does not say all", r)
		}
		for _, metric := range regexp.MustCompile(`service_\w+`).FindAllString(r.Expr, -1) {
			if !strings.Contains(string(source), `"`+strings.TrimSuffix(metric, "_count")+`"`) {
				t.Errorf("%s: there is no metric %s", r.Alert, metric)
			}
		}
	}
	for _, file := range []string{"deploy/grafana/datasources.yml", "deploy/grafana/dashboards.yml"} {
		readYAML(t, file, new(map[string]any))
	}
}

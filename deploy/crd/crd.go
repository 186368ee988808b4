// Package crd holds the definitions of Frond's kinds, which controller-gen makes from api (`make generate`).
package crd

import (
	"embed"
	"fmt"
	"io/fs"
)

//go:embed *.yaml
var files embed.FS

// Definitions are the CustomResourceDefinitions, each as YAML.
func Definitions() ([][]byte, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	all := make([][]byte, len(names))
	for i, name := range names {
		if all[i], err = files.ReadFile(name); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return all, nil
}

package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/frond-edge/frond/api/apps"
)

// applyOverriders changes an object for a target, in KubeEdge's order. The first fault ends it: half an override is none. Differences concern
// the objects that have what they change: a ConfigMap has no replicas and no containers. A container that none of the target's objects has is a fault;
// containers has the names of all.
func applyOverriders(o *unstructured.Unstructured, by apps.Overriders, containers map[string]bool) error {
	if by.Replicas != nil && hasReplicas(o) {
		if *by.Replicas < 0 {
			return fmt.Errorf("overriders.replicas is %d", *by.Replicas)
		}
		if err := unstructured.SetNestedField(o.Object, int64(*by.Replicas), "spec", "replicas"); err != nil {
			return fmt.Errorf("overriders.replicas: %w", err)
		}
	}
	_, hasPods := podSpecPath(o)
	workload := hasPods || isWorkloadKind(o)
	for i, image := range by.ImageOverriders {
		if !workload && (image.Predicate == nil || !hasPath(o.Object, image.Predicate.Path)) {
			continue
		}
		if err := overrideImages(o, image); err != nil {
			return fmt.Errorf("overriders.imageOverriders[%d]: %w", i, err)
		}
	}
	if !workload {
		return nil
	}
	c := containerChanger{o, containers}
	for i, command := range by.CommandOverriders {
		if err := c.overrideWords("command", command); err != nil {
			return fmt.Errorf("overriders.commandOverriders[%d]: %w", i, err)
		}
	}
	for i, args := range by.ArgsOverriders {
		if err := c.overrideWords("args", args); err != nil {
			return fmt.Errorf("overriders.argsOverriders[%d]: %w", i, err)
		}
	}
	for i, env := range by.EnvOverriders {
		if err := c.overrideEnv(env); err != nil {
			return fmt.Errorf("overriders.envOverriders[%d]: %w", i, err)
		}
	}
	for i, resources := range by.ResourcesOverriders {
		if err := c.overrideResources(resources); err != nil {
			return fmt.Errorf("overriders.resourcesOverriders[%d]: %w", i, err)
		}
	}
	return nil
}

// hasReplicas reports whether the number of replicas means something to an object.
func hasReplicas(o *unstructured.Unstructured) bool {
	switch o.GetKind() {
	case "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet":
		return true
	}
	return hasPath(o.Object, "/spec/replicas")
}

// isWorkloadKind reports whether an object without containers is one that should have some.
func isWorkloadKind(o *unstructured.Unstructured) bool {
	switch o.GroupVersionKind().Group {
	case "apps", "batch":
		return true
	}
	return o.GetAPIVersion() == "v1" && o.GetKind() == "Pod"
}

// hasPath reports whether an object has something at a JSON pointer without items of lists.
func hasPath(fields map[string]any, pointer string) bool {
	_, found, err := unstructured.NestedFieldNoCopy(fields, strings.Split(strings.TrimPrefix(pointer, "/"), "/")...)
	return found && err == nil
}

// containerChanger changes the containers of an object.
type containerChanger struct {
	*unstructured.Unstructured
	// known are the containers of all manifests that are made for the target.
	known map[string]bool
}

// change changes the container of a name.
func (c containerChanger) change(name string, change func(container map[string]any) error) error {
	return changeContainers(c.Unstructured, func(containers []any) error {
		for _, item := range containers {
			if container, ok := item.(map[string]any); ok && container["name"] == name {
				return change(container)
			}
		}
		if c.known[name] {
			return nil // of another manifest
		}
		return fmt.Errorf("containerName: there is no container %q", name)
	})
}

// changeContainers changes the containers of an object, which do not include init containers.
func changeContainers(o *unstructured.Unstructured, change func(containers []any) error) error {
	path, found := podSpecPath(o)
	if !found {
		return fmt.Errorf("a %s has no containers", o.GetKind())
	}
	path = append(path, "containers")
	containers, _, err := unstructured.NestedSlice(o.Object, path...)
	if err != nil {
		return err
	}
	if err := change(containers); err != nil {
		return err
	}
	return unstructured.SetNestedSlice(o.Object, containers, path...)
}

func (c containerChanger) overrideWords(field string, by apps.CommandArgsOverrider) error {
	return c.change(by.ContainerName, func(container map[string]any) error {
		words, _, err := unstructured.NestedStringSlice(container, field)
		if err != nil {
			return err
		}
		switch by.Operator {
		case "add":
			words = append(words, by.Value...)
		case "remove":
			words = slices.DeleteFunc(words, func(word string) bool { return slices.Contains(by.Value, word) })
		default:
			return errOperator(by.Operator)
		}
		if len(words) == 0 {
			delete(container, field)
			return nil
		}
		return unstructured.SetNestedStringSlice(container, words, field)
	})
}

func errOperator(operator string) error { return fmt.Errorf("operator %q is not understood", operator) }

// overrideEnv keeps the order of what is there, so that the same input always gives the same object.
func (c containerChanger) overrideEnv(by apps.EnvOverrider) error {
	return c.change(by.ContainerName, func(container map[string]any) error {
		env, _, err := unstructured.NestedSlice(container, "env")
		if err != nil {
			return err
		}
		for _, variable := range by.Value {
			named := func(v any) bool {
				entry, ok := v.(map[string]any)
				return ok && entry["name"] == variable.Name
			}
			fields, err := variableFields(variable)
			if err != nil {
				return err
			}
			at := slices.IndexFunc(env, named)
			switch {
			case by.Operator == "remove":
				env = slices.DeleteFunc(env, named)
			case by.Operator == "replace" && at >= 0:
				env[at] = fields
			case by.Operator == "add" || by.Operator == "replace":
				env = append(env, fields)
			default:
				return errOperator(by.Operator)
			}
		}
		if len(env) == 0 {
			delete(container, "env")
			return nil
		}
		return unstructured.SetNestedSlice(container, env, "env")
	})
}

func variableFields(variable corev1.EnvVar) (map[string]any, error) {
	text, err := json.Marshal(variable)
	if err != nil {
		return nil, err
	}
	fields := map[string]any{}
	return fields, json.Unmarshal(text, &fields)
}

func (c containerChanger) overrideResources(by apps.ResourcesOverrider) error {
	return c.change(by.ContainerName, func(container map[string]any) error {
		for field, quantities := range map[string]corev1.ResourceList{"requests": by.Value.Requests, "limits": by.Value.Limits} {
			for name, quantity := range quantities {
				if quantity.IsZero() {
					continue // as KubeEdge does
				}
				if err := unstructured.SetNestedField(container, quantity.String(), "resources", field, string(name)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func overrideImages(o *unstructured.Unstructured, by apps.ImageOverrider) error {
	if by.Predicate != nil && by.Predicate.Path != "" {
		return overrideImageAt(o, by)
	}
	return changeContainers(o, func(containers []any) error {
		for i, c := range containers {
			container, ok := c.(map[string]any)
			if !ok {
				return fmt.Errorf("container %d is no object", i)
			}
			image, ok := container["image"].(string)
			if !ok {
				return fmt.Errorf("container %d has no image", i)
			}
			changed, err := overrideImage(image, by)
			if err != nil {
				return err
			}
			container["image"] = changed
		}
		return nil
	})
}

// overrideImageAt changes the image that a JSON pointer (RFC 6901) leads to.
func overrideImageAt(o *unstructured.Unstructured, by apps.ImageOverrider) error {
	var at any = o.Object
	tokens := strings.Split(strings.TrimPrefix(by.Predicate.Path, "/"), "/")
	missing := fmt.Errorf("predicate.path: there is nothing at %s", by.Predicate.Path)
	for i, token := range tokens {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		last := i == len(tokens)-1
		switch v := at.(type) {
		case map[string]any:
			next, found := v[token]
			if !found {
				return missing
			}
			if !last {
				at = next
				continue
			}
			image, ok := next.(string)
			if !ok {
				return fmt.Errorf("predicate.path: %s is no text", by.Predicate.Path)
			}
			changed, err := overrideImage(image, by)
			if err != nil {
				return err
			}
			v[token] = changed
		case []any:
			index, err := strconv.Atoi(token)
			if err != nil || index < 0 || index >= len(v) || last {
				return missing
			}
			at = v[index]
		default:
			return missing
		}
	}
	return nil
}

// overrideImage changes one component of an image's name.
func overrideImage(image string, by apps.ImageOverrider) (string, error) {
	parts := splitImage(image)
	component := map[string]*string{"Registry": &parts.registry, "Repository": &parts.repository, "Tag": &parts.version}[by.Component]
	if component == nil {
		return "", fmt.Errorf("component %q is not understood", by.Component)
	}
	value := by.Value
	if by.Component == "Tag" {
		value = strings.TrimPrefix(value, "@") // of a digest
	}
	switch by.Operator {
	case "remove":
		*component = ""
	case "add":
		*component += value
	case "replace":
		*component = value
	default:
		return "", errOperator(by.Operator)
	}
	if parts.repository == "" {
		return "", errors.New("the image has no repository then")
	}
	return parts.String(), nil
}

// imageParts are the components of an image's name: [registry/]repository[:tag][@digest]. version is a tag, a digest, or "tag@digest".
type imageParts struct{ registry, repository, version string }

func splitImage(image string) imageParts {
	var p imageParts
	rest := image
	if first, after, found := strings.Cut(image, "/"); found && (strings.ContainsAny(first, ".:") || first == "localhost") {
		p.registry, rest = first, after
	}
	if i := strings.IndexAny(rest, ":@"); i >= 0 {
		p.repository, p.version = rest[:i], rest[i+1:]
	} else {
		p.repository = rest
	}
	return p
}

func (p imageParts) String() string {
	text := p.repository
	if p.registry != "" {
		text = p.registry + "/" + text
	}
	switch algorithm, _, isDigest := strings.Cut(p.version, ":"); {
	case p.version == "":
		return text
	case isDigest && !strings.Contains(algorithm, "@"):
		return text + "@" + p.version
	default:
		return text + ":" + p.version
	}
}

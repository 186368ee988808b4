// Package behaviour derives how a simulated container runs from its command, its environment and its pod's annotations. It is a pure
// function of them.
package behaviour

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"time"
)

// Annotations of a pod that define how its containers behave. The environment of one container overrides them: EnvPrefix
// and the upper-case last part, as in HOLLOW_EXIT_AFTER.
const (
	AnnotationExitAfter  = "hollow.frond.io/exit-after"  // a duration: the container exits by itself
	AnnotationExitCode   = "hollow.frond.io/exit-code"   // with this code instead of its command's
	AnnotationStopAfter  = "hollow.frond.io/stop-after"  // how long it takes to exit after SIGTERM
	AnnotationStartError = "hollow.frond.io/start-error" // starting fails with this text

	EnvPrefix = "HOLLOW_"
)

// Behaviour is the simulated run of a container, decided when it starts.
//
// A command of the form `sh -c SCRIPT`, or one plain command, is interpreted if it consists of echo, sleep, true, false and
// exit, joined by ";", "&&" or new lines. Anything else is a server: it runs until it is stopped, and then ends with 0.
type Behaviour struct {
	Output     []Line
	Ends       bool // exits by itself, EndAfter its start
	EndAfter   time.Duration
	Code       int32
	StopAfter  time.Duration
	StartError string
}

// Line is one line of output, After the start of the container.
type Line struct {
	After time.Duration
	Text  string
}

// Parse derives the behaviour of a container. It fails if a setting is no duration or no number.
func Parse(command []string, env, annotations map[string]string) (Behaviour, error) {
	b := ParseCommand(command)
	setting := func(annotation string) string {
		name := strings.ReplaceAll(path.Base(annotation), "-", "_")
		if v, ok := env[EnvPrefix+strings.ToUpper(name)]; ok {
			return v
		}
		return annotations[annotation]
	}
	b.StartError = setting(AnnotationStartError)
	if v := setting(AnnotationExitAfter); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			return Behaviour{}, fmt.Errorf("read %s: %w", AnnotationExitAfter, err)
		}
		b.Ends, b.EndAfter = true, d
	}
	if v := setting(AnnotationExitCode); v != "" {
		code, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			return Behaviour{}, fmt.Errorf("read %s: %w", AnnotationExitCode, err)
		}
		b.Code = int32(code)
	}
	if v := setting(AnnotationStopAfter); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			return Behaviour{}, fmt.Errorf("read %s: %w", AnnotationStopAfter, err)
		}
		b.StopAfter = d
	}
	return b, nil
}

// ParseCommand interprets a command line of the few known commands.
func ParseCommand(command []string) Behaviour {
	var b Behaviour
	for _, words := range splitCommands(command) {
		switch path.Base(words[0]) {
		case "echo":
			b.Output = append(b.Output, Line{After: b.EndAfter, Text: strings.Join(words[1:], " ")})
			b.Ends, b.Code = true, 0
		case "sleep":
			d, ok := parseSeconds(words[1:])
			if !ok { // "sleep infinity"
				return Behaviour{Output: b.Output}
			}
			b.EndAfter += d
			b.Ends, b.Code = true, 0
		case "true", ":":
			b.Ends, b.Code = true, 0
		case "false":
			b.Ends, b.Code = true, 1
		case "exit":
			b.Ends = true
			if len(words) > 1 {
				code, _ := strconv.ParseInt(words[1], 10, 32)
				b.Code = int32(code) & 0xff // as exit(2) does
			}
			return b
		default:
			return Behaviour{Output: b.Output} // a server, or a loop
		}
	}
	return b
}

// splitCommands splits a command line into plain commands, each with at least one word.
func splitCommands(command []string) [][]string {
	if len(command) >= 3 && strings.HasPrefix(command[1], "-") && strings.HasSuffix(command[1], "c") {
		switch path.Base(command[0]) {
		case "sh", "ash", "bash", "dash":
			var all [][]string
			script := strings.NewReplacer("&&", "\n", ";", "\n").Replace(command[2])
			for line := range strings.SplitSeq(script, "\n") {
				if words := strings.Fields(strings.NewReplacer(`"`, "", "'", "").Replace(line)); len(words) > 0 {
					all = append(all, words)
				}
			}
			return all
		}
	}
	if len(command) == 0 {
		return nil
	}
	return [][]string{command}
}

func parseSeconds(words []string) (time.Duration, bool) {
	if len(words) == 0 {
		return 0, true
	}
	if n, err := strconv.ParseFloat(words[0], 64); err == nil {
		d := time.Duration(n * float64(time.Second))
		return d, d >= 0 && !math.IsInf(n, 0) && !math.IsNaN(n)
	}
	d, err := time.ParseDuration(words[0])
	return d, err == nil && d >= 0
}

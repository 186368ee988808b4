// Package mapperrun builds and runs the mapper of test/mapper, which is built on KubeEdge's framework, on a gateway of a development cluster, and times
// what it prints: the calls that it gets, what its drivers write, and which of its reports edgecore has answered.
package mapperrun

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/devices/sensor"
	"github.com/frond-edge/frond/loadtest/poll"
)

// Protocol is that of the mapper's virtual devices.
const Protocol = "virtual"

// Printed is a line that the mapper has printed, and when.
type Printed struct {
	words []string
	at    time.Time
}

// Mapper is a process of test/mapper. Its methods may be called by one goroutine.
type Mapper struct {
	dir     string
	cmd     *exec.Cmd
	reading sync.WaitGroup

	mu    sync.Mutex // guards lines
	lines []Printed
}

// Start builds the mapper in the source tree that the present folder is in, and runs it with edgecore's socket in a folder. Stop it.
func Start(ctx context.Context, sockets string) (m *Mapper, err error) {
	m = &Mapper{}
	if m.dir, err = os.MkdirTemp("", "frond-mapper-"); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(m.dir))
		}
	}()
	program, err := buildMapper(ctx, m.dir)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(m.dir, "config.yaml")
	text := fmt.Sprintf("grpc_server:\n  socket_path: %[1]s/load.sock\ncommon:\n  name: load\n  version: v1\n  api_version: v1\n  protocol: %[2]s\n  address: x\n"+
		"  edgecore_sock: %[1]s/dmi.sock\n  http_port: \"0\"\n", sockets, Protocol)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write configuration of the mapper: %w", err)
	}
	m.cmd = exec.CommandContext(ctx, program, "--config-file", config, "--v", "1")
	output, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the mapper: %w", err)
	}
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the mapper: %w", err)
	}
	m.reading.Go(func() { m.read(output) })
	return m, nil
}

func buildMapper(ctx context.Context, dir string) (program string, err error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the source of the mapper: %w", err)
	}
	program = filepath.Join(dir, "mapper")
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "test", "mapper"), "build", "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the mapper: %w: %s", err, out)
	}
	return program, nil
}

// read keeps the lines that a load waits for, until the mapper ends: some thousand.
func (m *Mapper) read(output io.Reader) {
	scanner := bufio.NewScanner(output)
	for scanner.Scan() {
		line := Printed{strings.Fields(scanner.Text()), time.Now()}
		if len(line.words) < 4 {
			continue
		}
		m.mu.Lock()
		m.lines = append(m.lines, line)
		m.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, output) // a line that is too long must not block the mapper
}

// Await waits for a line and returns the time of the first one.
func (m *Mapper) Await(ctx context.Context, matches func(Printed) bool) (at time.Time, err error) {
	err = poll.Until(ctx, "the mapper says what is awaited", func(context.Context) (bool, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		i := slices.IndexFunc(m.lines, matches)
		if i >= 0 {
			at = m.lines[i].at
		}
		return i >= 0, nil
	})
	return at, err
}

// LineOf matches a line of these words.
func LineOf(words ...string) func(Printed) bool {
	return func(p Printed) bool { return slices.Equal(p.words, words) }
}

// AnsweredAfter matches the answer to a report that was made after a time: the value of a report is its time.
func AnsweredAfter(id string, after time.Time) func(Printed) bool {
	return func(p Printed) bool {
		if !slices.Equal(p.words[:3], []string{"answered", id, sensor.Sample}) {
			return false
		}
		micros, err := strconv.ParseInt(p.words[3], 10, 64)
		return err == nil && time.UnixMicro(micros).After(after)
	}
}

// Stop ends the mapper and removes its files. A mapper that has ended before is an error.
func (m *Mapper) Stop() error {
	alive := m.cmd.Process.Kill()
	m.reading.Wait()
	_ = m.cmd.Wait() // of the signal
	if alive != nil {
		alive = fmt.Errorf("the mapper has ended by itself: %w", alive)
	}
	return errors.Join(alive, os.RemoveAll(m.dir))
}

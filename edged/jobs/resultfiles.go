package jobs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/frond-edge/frond/api/jobs"
)

const (
	resultSuffix, temporarySuffix = ".json", ".new"
	// maxResult bounds what is read back: 64 images with a reason each.
	maxResult = 1 << 20
)

// result is the outcome of a task as it is on the disk.
type result struct {
	UID    string              `json:"uid"`
	Status jobs.NodeTaskStatus `json:"status"`
}

// resultFiles are the outcomes of the tasks that are still in the store, one file for each. It is used by one goroutine.
type resultFiles struct {
	dir string
	// known are the outcomes by the UID of their task.
	known map[string]jobs.NodeTaskStatus
}

// open reads the outcomes. A file that is unreadable is as if it were not there: its step is done again.
func (r *resultFiles) open() error {
	r.known = map[string]jobs.NodeTaskStatus{}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return fmt.Errorf("folder of outcomes: %w", err)
	}
	files, err := os.ReadDir(r.dir)
	if err != nil {
		return fmt.Errorf("folder of outcomes: %w", err)
	}
	for _, file := range files {
		info, err := file.Info()
		if err != nil || !strings.HasSuffix(file.Name(), resultSuffix) || info.Size() > maxResult {
			continue
		}
		data, err := os.ReadFile(filepath.Join(r.dir, file.Name()))
		if err != nil {
			continue
		}
		var stored result
		if json.Unmarshal(data, &stored) == nil && stored.UID != "" && stored.Status.Phase.IsFinal() {
			r.known[stored.UID] = stored.Status
		}
	}
	return nil
}

// fileOf returns the file of a task. The name is a digest, so that no UID leads out of the folder.
func (r *resultFiles) fileOf(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	return filepath.Join(r.dir, hex.EncodeToString(sum[:])+resultSuffix)
}

// of returns the outcome of a task.
func (r *resultFiles) of(task *jobs.NodeTask) (jobs.NodeTaskStatus, bool) {
	status, done := r.known[string(task.UID)]
	return status, done
}

// save records the outcome of a task; it is synced to the disk when save returns without an error, and known to this process in any case.
func (r *resultFiles) save(task *jobs.NodeTask, status jobs.NodeTaskStatus) error {
	r.known[string(task.UID)] = status
	data, err := json.Marshal(result{string(task.UID), status})
	if err != nil {
		return fmt.Errorf("encode outcome: %w", err)
	}
	path := r.fileOf(string(task.UID))
	if err := writeSynced(path+temporarySuffix, data); err != nil {
		return err
	}
	if err := os.Rename(path+temporarySuffix, path); err != nil {
		return fmt.Errorf("write outcome: %w", err)
	}
	return syncFolder(r.dir)
}

func writeSynced(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) //nolint:gosec // the folder and a digest
	if err != nil {
		return fmt.Errorf("write outcome: %w", err)
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("write outcome: %w", err)
	}
	return nil
}

func syncFolder(dir string) error {
	folder, err := os.Open(dir) //nolint:gosec // the folder of the configuration
	if err != nil {
		return fmt.Errorf("sync outcomes: %w", err)
	}
	if err := errors.Join(folder.Sync(), folder.Close()); err != nil {
		return fmt.Errorf("sync outcomes: %w", err)
	}
	return nil
}

// forget removes the outcomes of all tasks but those that are present.
func (r *resultFiles) forget(present map[string]bool) error {
	var failures []error
	for uid := range r.known {
		if present[uid] {
			continue
		}
		if err := os.Remove(r.fileOf(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, err)
			continue
		}
		delete(r.known, uid)
	}
	return errors.Join(failures...)
}

package recovery

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// streamsDir is where nats-server keeps the streams of the only account, below the broker's folder.
	streamsDir = "jetstream/$G/streams"
	// consumersDir is where it keeps the consumers of a stream, below the stream's folder.
	consumersDir = "obs"
	// messagesDir is where it keeps its messages.
	messagesDir = "msgs"
	// stateFile holds how far a consumer is, and begins with stateMagic.
	stateFile  = "o.dat"
	stateMagic = 22
	// savedFile holds the copies.
	savedFile = "definitions.json"

	fileMode = 0o600
	dirMode  = 0o700
)

// definitions returns the files that say what a stream or consumer is. nats-server ignores what is stored if it cannot read them.
func definitions() [2]string { return [2]string{"meta.inf", "meta.sum"} }

// Files are those of a broker's folder.
type Files struct {
	// Dir is the broker's folder.
	Dir string
	// Stream and Consumer are those of the gateway; Consumer may be empty.
	Stream, Consumer string
	Log              *zap.Logger
}

// consumerDir returns the folder of the gateway's consumer.
func (f Files) consumerDir() string {
	return filepath.Join(f.Dir, streamsDir, f.Stream, consumersDir, f.Consumer)
}

// save keeps copies of what the streams and the gateway's consumer are, synced: nats-server writes these files without a sync, at each start. It is
// called before clients may connect, so that what is lost in a power cut before it is nothing that anybody was promised.
func (f Files) save() error {
	saved := map[string][]byte{}
	for _, folder := range f.defined() {
		for _, name := range definitions() {
			path := filepath.Join(folder, name)
			data, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("save what the MQTT broker's streams are: %w", err)
			}
			relative, err := filepath.Rel(f.Dir, path)
			if err != nil {
				return fmt.Errorf("save what the MQTT broker's streams are: %w", err)
			}
			saved[relative] = data
		}
	}
	data, err := json.Marshal(saved)
	if err != nil {
		return fmt.Errorf("save what the MQTT broker's streams are: %w", err)
	}
	return replace(filepath.Join(f.Dir, savedFile), data)
}

// defined returns the folders of the streams, and of the gateway's consumer.
func (f Files) defined() (folders []string) {
	entries, _ := os.ReadDir(filepath.Join(f.Dir, streamsDir)) // none before the first start
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			folders = append(folders, filepath.Join(f.Dir, streamsDir, e.Name()))
		}
	}
	if f.Consumer == "" {
		return folders
	}
	return append(folders, f.consumerDir())
}

// minFree is what must be free on the disk before nats-server opens its streams: more than it writes for that. It removes a stream that it cannot open.
const minFree = 4 << 20

// Restore makes the files readable before nats-server opens them: it puts back the copies where files differ from them, and removes the states of
// consumers that are none. What the streams hold, it leaves alone. It returns an error if the disk is full.
func (f Files) Restore() error {
	if err := f.putAllBack(); err != nil {
		return fmt.Errorf("put back damaged streams of the MQTT broker: %w", err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(f.Dir, &disk); err != nil {
		return fmt.Errorf("free space for the MQTT broker: %w", err)
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < minFree { //nolint:gosec // not negative
		return fmt.Errorf("the disk is full: %d bytes are free, the MQTT broker starts with %d", free, minFree)
	}
	data, err := os.ReadFile(filepath.Join(f.Dir, savedFile))
	switch {
	case errors.Is(err, fs.ErrNotExist): // before the first start, or of an older version
	case err != nil:
		return fmt.Errorf("read what the MQTT broker's streams are: %w", err)
	default:
		saved := map[string][]byte{}
		if err := json.Unmarshal(data, &saved); err != nil {
			f.Log.Warn("the copies of what the MQTT broker's streams are cannot be read", zap.Error(err))
		}
		var restored []string
		for _, path := range slices.Sorted(maps.Keys(saved)) {
			done, err := f.restore(path, saved[path])
			if err != nil {
				return fmt.Errorf("restore what the MQTT broker's streams are: %w", err)
			}
			if done {
				restored = append(restored, path)
			}
		}
		if len(restored) > 0 {
			f.Log.Warn("files of the MQTT broker are damaged, their copies are put back", zap.Strings("files", restored))
		}
	}
	return f.removeDamagedStates()
}

// restore puts one copy back, if the stream's folder is there, and reports whether it was needed.
func (f Files) restore(relative string, content []byte) (bool, error) {
	if !filepath.IsLocal(relative) {
		return false, nil
	}
	path := filepath.Join(f.Dir, relative)
	if current, err := os.ReadFile(path); err == nil && bytes.Equal(current, content) {
		return false, nil
	}
	stream, _, _ := strings.Cut(strings.TrimPrefix(filepath.ToSlash(relative), streamsDir+"/"), "/")
	if _, err := os.Stat(filepath.Join(f.Dir, streamsDir, stream)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return false, err
	}
	return true, replace(path, content)
}

// removeDamagedStates removes the state of each consumer that has none that nats-server can read: it would leave out the consumer.
func (f Files) removeDamagedStates() error {
	var removed []string
	states, err := filepath.Glob(filepath.Join(f.Dir, streamsDir, "*", consumersDir, "*", stateFile))
	if err != nil {
		return fmt.Errorf("states of the MQTT broker's consumers: %w", err)
	}
	for _, path := range states {
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("state of a consumer of the MQTT broker: %w", err)
		}
		if len(data) > 0 && data[0] == stateMagic {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove the state of a consumer of the MQTT broker: %w", err)
		}
		removed = append(removed, filepath.Base(filepath.Dir(path)))
	}
	if len(removed) > 0 {
		f.Log.Warn("states of consumers of the MQTT broker are damaged and removed", zap.Strings("consumers", removed))
	}
	return nil
}

// removeStray removes the files of all consumers of a stream but those that the server has: it does not read the others, and would take them for those
// of a new consumer.
func (f Files) removeStray(stream string, has []string) error {
	folder := filepath.Join(f.Dir, streamsDir, stream, consumersDir)
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if slices.Contains(has, e.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(folder, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// asideDir is where the files of a stream are set aside, and doneSuffix marks those that are not needed any more.
func (f Files) asideDir(stream string) string { return filepath.Join(f.Dir, damagedDir, stream) }

const (
	damagedDir = "damaged"
	doneSuffix = ".done"
)

// setAside moves the files of a stream away that the server cannot read, and leaves a copy of its messages: nats-server removes all files of a stream
// that it cannot make. It reports whether there are any; then putBack undoes it, also after an error.
func (f Files) setAside(stream string) (damaged bool, err error) {
	from, to := filepath.Join(f.Dir, streamsDir, stream), f.asideDir(stream)
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(to), dirMode); err != nil {
		return false, err
	}
	if err := os.Rename(from, to); err != nil { // fails if there is one, which is never overwritten
		return false, err
	}
	return true, copyMessages(filepath.Join(to, messagesDir), filepath.Join(from, messagesDir))
}

// copyMessages copies the blocks of a stream's messages.
func copyMessages(from, to string) error {
	blocks, err := filepath.Glob(filepath.Join(from, "*.blk"))
	if err != nil || len(blocks) == 0 {
		return err
	}
	if err := os.MkdirAll(to, dirMode); err != nil {
		return err
	}
	for _, block := range blocks {
		data, err := os.ReadFile(block)
		if err != nil {
			return err
		}
		if err := replace(filepath.Join(to, filepath.Base(block)), data); err != nil {
			return err
		}
	}
	return nil
}

// putBack undoes setAside, for the next attempt: the disk may be full.
func (f Files) putBack(stream string) error {
	to := filepath.Join(f.Dir, streamsDir, stream)
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), dirMode); err != nil {
		return err
	}
	return os.Rename(f.asideDir(stream), to)
}

// putAllBack puts back what a start that did not come to its end has set aside, and removes what is not needed any more.
func (f Files) putAllBack() error {
	entries, err := os.ReadDir(filepath.Join(f.Dir, damagedDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), doneSuffix) {
			err = os.RemoveAll(filepath.Join(f.Dir, damagedDir, e.Name()))
		} else {
			err = f.putBack(e.Name())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeAside removes what setAside has moved away. A start that ends before it is complete does not put it back.
func (f Files) removeAside(stream string) error {
	done := f.asideDir(stream) + doneSuffix
	if err := os.Rename(f.asideDir(stream), done); err != nil {
		return err
	}
	return os.RemoveAll(done)
}

// replace writes a file, synced; a power cut leaves the old one or the new one.
func replace(path string, data []byte) error {
	if current, err := os.ReadFile(path); err == nil && bytes.Equal(current, data) {
		return nil
	}
	temporary := path + ".new"
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

package seal

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"go.uber.org/zap"
)

const (
	fileMode = 0o600
	// foreign are the permissions that nobody but the owner may have.
	foreign = 0o077
	// damagedSuffix names the place of a file that is no ring.
	damagedSuffix = ".damaged"
	// fileSize bounds a ring: a key is a line of 62 bytes.
	fileSize = 64 << 10
)

// errDamaged says that a file is not as Create or an operator has written it.
var errDamaged = errors.New("not a file of keys")

// Load reads the ring in a file: a line for each key, the newest first; the key's id, which proves that the line is whole, may be
// missing. A missing file is made with a new key; it is on disk, with its
// name, when Load returns. A damaged one is put aside under its name and ".damaged" and made anew: what it has sealed is lost then, and
// an agent that does not start would lose more. A file that others may read is closed to them. The folder must exist.
func Load(path string, log *zap.Logger) (*Ring, error) {
	secrets, err := read(path, log)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		log.Info("key for Secrets made", zap.String("file", path))
		return create(path)
	case errors.Is(err, errDamaged):
		log.Error("key for Secrets is damaged, making another one; what it has sealed must come from the cloud again", zap.String("file", path), zap.Error(err))
		if err := os.Rename(path, path+damagedSuffix); err != nil {
			return nil, fmt.Errorf("put the damaged key aside: %w", err)
		}
		return create(path)
	case err != nil:
		return nil, fmt.Errorf("read the key: %w", err)
	}
	return New(secrets...)
}

func read(path string, log *zap.Logger) ([][]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > fileSize {
		return nil, fmt.Errorf("%s: %w", path, errDamaged)
	}
	if mode := info.Mode().Perm(); mode&foreign != 0 {
		if err := os.Chmod(path, fileMode); err != nil {
			return nil, fmt.Errorf("others may read %s (mode %o): %w", path, mode, err)
		}
		log.Warn("others could read the key for Secrets, closed it to them", zap.String("file", path), zap.Stringer("mode", mode))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var secrets [][]byte
	for line := range strings.Lines(string(data)) {
		id, text, named := strings.Cut(strings.TrimSpace(line), " ")
		if !named {
			text = id // written by hand
		}
		secret, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(secret) != KeySize || named && idOf(secret) != id {
			return nil, fmt.Errorf("%w: line %d", errDamaged, len(secrets)+1)
		}
		secrets = append(secrets, secret)
	}
	if len(secrets) == 0 {
		return nil, fmt.Errorf("%w: empty", errDamaged)
	}
	return secrets, nil
}

func create(path string) (*Ring, error) {
	secret := make([]byte, KeySize)
	_, _ = rand.Read(secret) // it never fails
	if err := write(path, secret); err != nil {
		return nil, fmt.Errorf("write the key: %w", err)
	}
	return New(secret)
}

// write replaces the file, durably.
func write(path string, secrets ...[]byte) error {
	var text strings.Builder
	for _, secret := range secrets {
		fmt.Fprintln(&text, idOf(secret), base64.StdEncoding.EncodeToString(secret))
	}
	dir := filepath.Dir(path)
	if err := renameio.WriteFile(path, []byte(text.String()), fileMode, renameio.WithTempDir(dir)); err != nil {
		return err
	}
	for _, folder := range []string{dir, filepath.Dir(dir)} { // the folder itself may be as new as the file
		if err := syncFolder(folder); err != nil {
			return err
		}
	}
	return nil
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

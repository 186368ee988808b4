package seal

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
	"go.uber.org/zap"
)

const (
	fileMode = 0o600
	// othersMode are the permissions that only the owner may have.
	othersMode = 0o077
	// damagedSuffix is appended to the name of a file that is not a key ring.
	damagedSuffix = ".damaged"
	// maxFileSize is the largest accepted ring file: a key is a line of 62 bytes.
	maxFileSize = 64 << 10
)

// errDamaged reports that a file is not as Create or an operator has written it.
var errDamaged = errors.New("not a file of keys")

// Load reads the key ring in a file. Each line is a key, the newest first. A key's id, which proves that the line is whole, may be
// missing. Blank lines are ignored; damaged ones are logged, and the others used.
//
// A missing file is created with a new key; it is on disk, with its name, when Load returns. A file without a whole line is renamed to
// its name and ".damaged", with a number if that exists already, and created anew: the data it has sealed is lost then, but an agent that
// does not start would lose more. Load removes the permissions of other users from the file. The folder must exist.
func Load(path string, log *zap.Logger) (*Ring, error) {
	secrets, err := readKeys(path, log)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		log.Info("key for Secrets made", zap.String("file", path))
		return createRing(path)
	case errors.Is(err, errDamaged):
		log.Error("key for Secrets is damaged, making another one; what it has sealed must come from the cloud again", zap.String("file", path), zap.Error(err))
		if err := putAside(path); err != nil {
			return nil, fmt.Errorf("put the damaged key aside: %w", err)
		}
		return createRing(path)
	case err != nil:
		return nil, fmt.Errorf("read the key: %w", err)
	}
	return New(secrets...)
}

func readKeys(path string, log *zap.Logger) ([][]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFileSize {
		return nil, fmt.Errorf("%s: %w", path, errDamaged)
	}
	if mode := info.Mode().Perm(); mode&othersMode != 0 {
		if err := os.Chmod(path, fileMode); err != nil {
			return nil, fmt.Errorf("others may read %s (mode %o): %w", path, mode, err)
		}
		log.Warn("others could read the key for Secrets, closed it to them", zap.String("file", path), zap.Stringer("mode", mode))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	secrets, bad := parseKeys(string(data))
	if len(secrets) == 0 {
		return nil, fmt.Errorf("%w: no whole line", errDamaged)
	}
	if len(bad) > 0 {
		log.Error("lines in the file of keys for Secrets are damaged, going on with the others", zap.String("file", path),
			zap.Ints("lines", bad), zap.Int("keys", len(secrets)))
	}
	return secrets, nil
}

// parseKeys returns the keys of the whole lines, and the numbers of the lines that are neither whole nor blank.
func parseKeys(text string) (secrets [][]byte, bad []int) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		secret, err := base64.StdEncoding.DecodeString(words[len(words)-1])
		named := len(words) > 1 // an operator's key may have no id
		if err != nil || len(secret) != KeySize || len(words) > 2 || named && keyID(secret) != words[0] {
			bad = append(bad, number)
			continue
		}
		secrets = append(secrets, secret)
	}
	return secrets, bad
}

// putAside renames a file without replacing another file.
func putAside(path string) error {
	to := path + damagedSuffix
	for n := 1; ; n++ {
		_, err := os.Lstat(to)
		if errors.Is(err, fs.ErrNotExist) {
			return os.Rename(path, to)
		}
		if err != nil {
			return err
		}
		to = path + damagedSuffix + "." + strconv.Itoa(n)
	}
}

func createRing(path string) (*Ring, error) {
	secret := make([]byte, KeySize)
	_, _ = rand.Read(secret) // never fails
	if err := writeKeys(path, secret); err != nil {
		return nil, fmt.Errorf("write the key: %w", err)
	}
	return New(secret)
}

// writeKeys replaces the file durably.
func writeKeys(path string, secrets ...[]byte) error {
	var text strings.Builder
	for _, secret := range secrets {
		fmt.Fprintln(&text, keyID(secret), base64.StdEncoding.EncodeToString(secret))
	}
	dir := filepath.Dir(path)
	if err := renameio.WriteFile(path, []byte(text.String()), fileMode, renameio.WithTempDir(dir)); err != nil {
		return err
	}
	for _, folder := range []string{dir, filepath.Dir(dir)} { // the folder itself may be as new as the file
		if err := syncDir(folder); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

package installation

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/backup"
	"github.com/frond-edge/frond/internal/cli"
)

const (
	// backupTimeout is the default: 100,000 gateways are written in some minutes.
	backupTimeout = 15 * time.Minute
	// maxKeyFile bounds files with a passphrase or an age identity.
	maxKeyFile = 64 << 10
)

// NewBackup returns frond backup.
func NewBackup() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "Back up and restore the CA, the keys and the gateways' identities in one encrypted file",
	}
	cmd.AddCommand(newBackupCreate(), newBackupRestore())
	return cmd
}

// backupCommand has the flags that create and restore share.
type backupCommand struct {
	kubeflags.Flags
	passphrase passphrase
	file       string
	timeout    time.Duration
	output     cli.Output
}

// addFlags adds the flags, with the words on --file and --timeout.
func (b *backupCommand) addFlags(cmd *cobra.Command, file, timeout string) {
	b.AddFlags(cmd)
	b.output.AddFlag(cmd)
	cmd.Flags().StringVar(&b.file, "file", "", file)
	cmd.Flags().StringVar(&b.passphrase.file, "passphrase-file", "", "file whose first line is the passphrase; without it, and without a key, it is asked for")
	cmd.Flags().DurationVar(&b.timeout, "timeout", backupTimeout, timeout)
	b.passphrase.in = os.Stdin
}

// passphrase is read from the terminal or from a file.
type passphrase struct {
	file string
	// in is the terminal.
	in *os.File
}

// readKey reads the passphrase; confirm reads it a second time.
func (p *passphrase) readKey(talk io.Writer, confirm bool) (backup.Key, error) {
	if p.file != "" {
		line, err := firstLine(p.file)
		if err != nil {
			return backup.Key{}, err
		}
		return backup.NewPassphrase(line)
	}
	terminal := int(p.in.Fd())
	if !term.IsTerminal(terminal) {
		return backup.Key{}, errors.New("there is no terminal to ask for the passphrase: give --passphrase-file, or age keys")
	}
	ask := func(words string) (string, error) {
		_, _ = fmt.Fprint(talk, words)
		text, err := term.ReadPassword(terminal)
		_, _ = fmt.Fprintln(talk)
		if err != nil {
			return "", fmt.Errorf("read the passphrase: %w", err)
		}
		return string(text), nil
	}
	first, err := ask("Passphrase of the backup: ")
	if err != nil {
		return backup.Key{}, err
	}
	if confirm {
		second, err := ask("Once more: ")
		if err != nil {
			return backup.Key{}, err
		}
		if first != second {
			return backup.Key{}, errors.New("the two passphrases differ")
		}
	}
	return backup.NewPassphrase(first)
}

func firstLine(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the passphrase: %w", err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	line, err := bufio.NewReader(io.LimitReader(f, maxKeyFile)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the passphrase: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}

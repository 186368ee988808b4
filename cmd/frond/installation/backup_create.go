package installation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/backup"
	"github.com/frond-edge/frond/internal/cli"
)

type backupCreate struct {
	backupCommand
	recipients []string
}

// createdBackup is the JSON output.
type createdBackup struct {
	File string `json:"file"`
	backup.Header
	Secrets    int   `json:"secrets"`
	ConfigMaps int   `json:"configMaps"`
	Identities int   `json:"identities"`
	Bytes      int64 `json:"bytes"`
}

func newBackupCreate() *cobra.Command {
	b := &backupCreate{}
	cmd := &cobra.Command{
		Use:   "create --file FILE",
		Short: "Back up the CA, the keys and the gateways' identities in one encrypted file",
		Long: `Back up what frond init cannot recreate, in one encrypted file: the CA, the keys and certificates of the hub and of cloudcore, the
choices made at installation, and the NodeIdentity of each gateway. It does not contain other objects, bootstrap tokens or the hub's
streams.

The file is encrypted by age, with a passphrase or for recipients (age-keygen), and can be decrypted with age itself. Anyone who can
decrypt it can authorize any client as any gateway. It needs the right to read Secrets in frond-system.`,
		Example: "  frond backup create --file frond.backup --passphrase-file /root/backup.pass\n  frond backup create --file frond.backup --recipient age1…",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	b.addFlags(cmd, "where the backup is written; it must not exist", "how long reading the cluster may take")
	cmd.Flags().StringSliceVar(&b.recipients, "recipient", nil, "age public key, age1…, whose holder can open it; may be given more than once")
	return cmd
}

// Run creates the backup.
func (b *backupCreate) Run(ctx context.Context, out, talk io.Writer) error {
	if b.file == "" {
		return errors.New("give --file, the name of the backup")
	}
	if _, err := os.Lstat(b.file); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists, and a backup writes over nothing: choose another name", b.file)
	}
	key, err := b.encryptionKey(talk)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	cfg, err := b.RESTConfig()
	if err != nil {
		return err
	}
	content, err := backup.Create(ctx, cfg, time.Now())
	if err != nil {
		return err
	}
	size, err := writeBackup(b.file, content, key)
	if err != nil {
		return err
	}
	if err := backup.RecordTime(ctx, cfg, content.Created); err != nil {
		fmt.Fprintln(talk, "warning: the backup is made, and frond init will not know of it:", err)
	}
	done := createdBackup{
		File: b.file, Header: content.Header, Bytes: size,
		Secrets: len(content.Secrets), ConfigMaps: len(content.ConfigMaps), Identities: len(content.Identities),
	}
	if b.output.JSON() {
		return cli.PrintJSON(out, done)
	}
	_, err = fmt.Fprintf(out, "%s: %d Secrets, %d ConfigMaps, %d NodeIdentities; the authority is %s\n", done.File, done.Secrets, done.ConfigMaps, done.Identities, done.CAHash)
	return err
}

func (b *backupCreate) encryptionKey(talk io.Writer) (backup.Key, error) {
	switch {
	case len(b.recipients) == 0:
		return b.passphrase.readKey(talk, true)
	case b.passphrase.file != "":
		return backup.Key{}, errors.New("give --passphrase-file or --recipient: age encrypts for one of the two")
	}
	return backup.NewRecipients(b.recipients)
}

// writeBackup makes the whole file appear atomically, readable by its owner alone.
func writeBackup(path string, content backup.Content, key backup.Key) (size int64, err error) {
	pending, err := renameio.NewPendingFile(path, renameio.WithStaticPermissions(0o600))
	if err != nil {
		return 0, fmt.Errorf("write the backup: %w", err)
	}
	defer func() { _ = pending.Cleanup() }() // no effect once the file is in place
	if err := backup.Write(pending, content, key); err != nil {
		return 0, err
	}
	written, err := pending.Stat()
	if err != nil {
		return 0, fmt.Errorf("write the backup: %w", err)
	}
	if err := pending.CloseAtomicallyReplace(); err != nil {
		return 0, fmt.Errorf("write the backup: %w", err)
	}
	return written.Size(), nil
}

package installation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/backup"
	"github.com/frond-edge/frond/internal/cli"
)

type backupRestore struct {
	backupCommand
	options      backup.Options
	identityFile string
}

func newBackupRestore() *cobra.Command {
	b := &backupRestore{}
	cmd := &cobra.Command{
		Use:   "restore --file FILE",
		Short: "Restore the objects of a backup that the cluster lacks",
		Long: `Restore the objects of a backup that the cluster lacks: keys, certificates, configuration, then what frond init installs, then the
NodeIdentity of each gateway. Gateways need not join again.

A Secret or ConfigMap that exists and differs is kept, unless --replace is given. If a NodeIdentity is on both sides, the key that was
recorded later counts, and a key or a node that is revoked on either side stays revoked. It is idempotent.`,
		Example: "  frond backup restore --file frond.backup --dry-run\n  frond backup restore --file frond.backup --identity-file key.txt",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	b.addFlags(cmd, "the backup", "how long it may take")
	f := cmd.Flags()
	f.StringVar(&b.identityFile, "identity-file", "", "file with the age identity, AGE-SECRET-KEY-…, that opens it")
	f.BoolVar(&b.options.DryRun, "dry-run", false, "only say what would be done")
	f.BoolVar(&b.options.Replace, "replace", false, "write over Secrets and ConfigMaps that differ, also where they are newer than the backup")
	f.BoolVar(&b.options.OtherCluster, "other-cluster", false, "take the backup of another cluster: its gateways will belong to this one")
	return cmd
}

// Run restores the backup.
func (b *backupRestore) Run(ctx context.Context, out, talk io.Writer) error {
	content, err := b.openBackup(talk)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	cfg, err := b.RESTConfig()
	if err != nil {
		return err
	}
	report, err := backup.Restore(ctx, cfg, content, b.options, time.Now())
	if err != nil {
		return fmt.Errorf("%w\n  what was restored stays: run it again", err)
	}
	if b.output.JSON() {
		return cli.PrintJSON(out, report)
	}
	return printRestored(report, b.options.DryRun, out, talk)
}

// openBackup opens and decrypts the file.
func (b *backupRestore) openBackup(talk io.Writer) (content backup.Content, err error) {
	if b.file == "" {
		return content, errors.New("give --file, the name of the backup")
	}
	f, err := os.Open(b.file)
	if err != nil {
		return content, fmt.Errorf("read the backup: %w", err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	key, err := b.decryptionKey(talk)
	if err != nil {
		return content, err
	}
	if content, err = backup.Read(f, key); err != nil {
		return content, fmt.Errorf("read %s: %w", b.file, err)
	}
	return content, nil
}

func (b *backupRestore) decryptionKey(talk io.Writer) (backup.Key, error) {
	if b.identityFile == "" {
		return b.passphrase.readKey(talk, false)
	}
	if b.passphrase.file != "" {
		return backup.Key{}, errors.New("give --passphrase-file or --identity-file, not both")
	}
	f, err := os.Open(b.identityFile)
	if err != nil {
		return backup.Key{}, fmt.Errorf("read the identity: %w", err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	return backup.NewIdentities(io.LimitReader(f, maxKeyFile))
}

func printRestored(r backup.Report, dry bool, out, talk io.Writer) error {
	fmt.Fprintf(talk, "the backup was made on %s, of the authority %s\n", r.Created.Format(time.RFC3339), r.CAHash)
	table := cli.NewTable(out, "KIND", "NAME", "ACTION")
	kept := 0
	for _, o := range r.Objects {
		if o.Action == backup.Kept {
			kept++
		}
		if o.Action != backup.Unchanged {
			table.AddRow(o.Kind, o.Name, o.Action)
		}
	}
	if err := table.Print(); err != nil {
		return err
	}
	for _, warning := range r.Warnings {
		fmt.Fprintln(talk, "warning:", warning)
	}
	if kept > 0 {
		fmt.Fprintf(talk, "%d objects differ from the backup and are kept: what is in the cluster is taken for newer\n", kept)
	}
	switch n := r.Changed(); {
	case n == 0:
		fmt.Fprintln(out, "nothing to restore")
	case dry:
		fmt.Fprintf(out, "%d objects would be restored; nothing was\n", n)
	default:
		fmt.Fprintf(out, "%d objects restored. Start the hub and cloudcore with them: kubectl apply --server-side -k deploy/cloud, then "+
			"kubectl -n frond-system rollout restart statefulset/frond-hub deployment/cloudcore\n", n)
	}
	return nil
}

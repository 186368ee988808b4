package token

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/cli"
)

type tokenDelete struct {
	kubeflags.Flags
	output cli.Output
}

func newDelete() *cobra.Command {
	t := &tokenDelete{}
	cmd := &cobra.Command{
		Use:   "delete ID …",
		Short: "Delete tokens; gateways that joined with them stay",
		Args:  cobra.MinimumNArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return t.Run(cmd.Context(), args, cmd.OutOrStdout()) },
	}
	t.AddFlags(cmd)
	t.output.AddFlag(cmd)
	return cmd
}

// Run deletes each token, given by its id or in full.
func (t *tokenDelete) Run(ctx context.Context, names []string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, kubeflags.Timeout)
	defer cancel()
	client, err := t.Client()
	if err != nil {
		return err
	}
	deleted, faults := []string{}, []error{}
	for _, name := range names {
		id, _, _ := strings.Cut(name, ".")
		if err := deleteToken(ctx, client, id); err != nil {
			faults = append(faults, err)
			continue
		}
		deleted = append(deleted, id)
	}
	if t.output.JSON() {
		return errors.Join(append(faults, cli.PrintJSON(out, deleted))...)
	}
	for _, id := range deleted {
		fmt.Fprintf(out, "token %s deleted\n", id)
	}
	return errors.Join(faults...)
}

func deleteToken(ctx context.Context, client kubernetes.Interface, id string) error {
	if !bootstraputil.IsValidBootstrapTokenID(id) {
		return errors.New("a token is named by its id, the six letters and digits before the point: frond token list shows them")
	}
	secrets := client.CoreV1().Secrets(identity.TokenNamespace)
	o, err := secrets.Get(ctx, bootstraputil.BootstrapTokenSecretName(id), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no token %s: frond token list shows them", id)
	}
	if err != nil {
		return fmt.Errorf("read token %s: %w", id, err)
	}
	if _, err := identity.TokenOf(o); err != nil {
		return fmt.Errorf("%w: kubeadm token delete ends it", err)
	}
	// The precondition excludes another Secret of the same name.
	err = secrets.Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete token %s: %w", id, err)
	}
	return nil
}

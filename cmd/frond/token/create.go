package token

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/cli"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/internal/install/jointoken"
)

// tokenTTL is kubeadm's default.
const tokenTTL = 24 * time.Hour

type tokenCreate struct {
	kubeflags.Flags
	options   jointoken.Options
	printJoin bool
	output    cli.Output
}

// createdToken is the JSON output, the only place with the whole token.
type createdToken struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	Node    string    `json:"node,omitempty"`
	Uses    int       `json:"uses"`
	CAHash  string    `json:"caHash,omitempty"`
	// JoinCommand is empty if frond init was not given the hub's address.
	JoinCommand string `json:"joinCommand,omitempty"`
}

func newCreate() *cobra.Command {
	t := &tokenCreate{}
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a token and print it; it cannot be shown again",
		Long: `Create a token and print it; it cannot be shown again. A token for one node (--node) also admits a node
that was revoked or has lost its key; any other token admits new nodes only. It needs the right to create Secrets in
kube-system.`,
		Example: "  frond token create --print-join-command\n  frond token create --node gw-17 --ttl 1h\n  frond token create --uses 0 --ttl 2h --description 'batch of May'",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.Run(cmd.Context(), cmd.OutOrStdout()) },
	}
	t.AddFlags(cmd)
	t.output.AddFlag(cmd)
	f := cmd.Flags()
	f.DurationVar(&t.options.TTL, "ttl", tokenTTL, "how long it is valid")
	f.IntVar(&t.options.Uses, "uses", 1, "how many gateways may join with it; 0 is any number")
	f.StringVar(&t.options.Node, "node", "", "the only node that may join with it")
	f.StringVar(&t.options.Description, "description", "", "purpose of the token, shown by token list")
	f.BoolVar(&t.printJoin, "print-join-command", false, "print the command to run on the gateway")
	return cmd
}

// Run creates the token.
func (t *tokenCreate) Run(ctx context.Context, out io.Writer) error {
	now := time.Now()
	token, secret, err := jointoken.New(t.options, now)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, kubeflags.Timeout)
	defer cancel()
	client, err := t.Client()
	if err != nil {
		return err
	}
	created := createdToken{Token: token, Expires: now.Add(t.options.TTL).UTC().Truncate(time.Second), Node: t.options.Node, Uses: t.options.Uses}
	if t.printJoin || t.output.JSON() { // before the token is created: an unprinted token would be useless
		settings, err := install.ReadSettings(ctx, client)
		if err == nil {
			created.CAHash = settings.CAHash
			created.JoinCommand, err = settings.JoinCommand(token, t.options.Node)
		}
		if err != nil && t.printJoin {
			return err
		}
	}
	if _, err := client.CoreV1().Secrets(secret.Namespace).Create(ctx, secret, metav1.CreateOptions{FieldManager: kubeflags.FieldManager}); err != nil {
		return fmt.Errorf("store the token: %w", err)
	}
	switch {
	case t.output.JSON():
		return cli.PrintJSON(out, created)
	case t.printJoin:
		_, err = fmt.Fprintln(out, created.JoinCommand)
	default:
		_, err = fmt.Fprintln(out, created.Token)
	}
	return err
}

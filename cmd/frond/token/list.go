package token

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/cmd/frond/kubeflags"
	"github.com/frond-edge/frond/internal/cli"
	"github.com/frond-edge/frond/internal/install/jointoken"
)

type tokenList struct {
	kubeflags.Flags
	output cli.Output
}

// listedToken is the JSON output.
type listedToken struct {
	ID          string    `json:"id"`
	State       string    `json:"state"`
	Expires     time.Time `json:"expires,omitzero"`
	Node        string    `json:"node,omitempty"`
	Uses        int       `json:"uses"` // 0: any number
	Used        []string  `json:"used,omitempty"`
	Description string    `json:"description,omitempty"`
}

func newList() *cobra.Command {
	t := &tokenList{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the join tokens, without their secrets",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return t.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	t.AddFlags(cmd)
	t.output.AddFlag(cmd)
	return cmd
}

// Run lists the tokens.
func (t *tokenList) Run(ctx context.Context, out, talk io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, kubeflags.Timeout)
	defer cancel()
	client, err := t.Client()
	if err != nil {
		return err
	}
	list, err := client.CoreV1().Secrets(identity.TokenNamespace).List(ctx, metav1.ListOptions{
		FieldSelector: "type=" + string(bootstrapapi.SecretTypeBootstrapToken),
	})
	if err != nil {
		return fmt.Errorf("list the tokens: %w", err)
	}
	now, tokens := time.Now(), []listedToken{}
	for i := range list.Items {
		secret := &list.Items[i]
		token, err := identity.TokenOf(secret)
		if err != nil {
			continue // not a token of Frond: it admits no gateway
		}
		tokens = append(tokens, listedToken{
			ID: token.ID, State: jointoken.State(token, now), Expires: token.Expires, Node: token.Node, Uses: token.Uses, Used: token.Used,
			Description: string(secret.Data[bootstrapapi.BootstrapTokenDescriptionKey]),
		})
	}
	if t.output.JSON() {
		return cli.PrintJSON(out, tokens)
	}
	if len(tokens) == 0 {
		fmt.Fprintln(talk, "there are no tokens: frond token create makes one")
		return nil
	}
	table := cli.NewTable(out, "ID", "STATE", "ENDS IN", "USES", "NODE", "DESCRIPTION")
	for _, token := range tokens {
		uses := strconv.Itoa(len(token.Used))
		if token.Uses > 0 {
			uses += " of " + strconv.Itoa(token.Uses)
		}
		ends := "never"
		if !token.Expires.IsZero() {
			ends = duration.HumanDuration(max(0, token.Expires.Sub(now)))
		}
		table.AddRow(token.ID, token.State, ends, uses, cli.OrDash(token.Node), cli.OrDash(token.Description))
	}
	return table.Print()
}

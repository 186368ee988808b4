package devcluster

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/identity"
)

// Gateways enrol as real ones do. Each has a token of its own, which names it and may be used for ever: one whose disk is wiped
// comes back with another key.

// The lengths of a token's two words.
const tokenIDBytes, tokenSecretBytes = 3, 8

// joinToken makes the token of a gateway, unless it has one.
func joinToken(e edgeLayout) error {
	if _, err := os.Stat(e.token()); err == nil {
		return nil
	}
	words := make([]byte, tokenIDBytes+tokenSecretBytes)
	if _, err := rand.Read(words); err != nil {
		return fmt.Errorf("make a token: %w", err)
	}
	token := hex.EncodeToString(words[:tokenIDBytes]) + "." + hex.EncodeToString(words[tokenIDBytes:])
	return writeFile(e.token(), []byte(token), 0o600)
}

// hubHash is the hash of the hub's CA.
func hubHash(l layout) (string, error) {
	data, err := os.ReadFile(l.in("nats", "ca.crt"))
	if err != nil {
		return "", fmt.Errorf("read the hub's CA: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return "", errors.New("the hub's CA is no certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("read the hub's CA: %w", err)
	}
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return identity.HashPrefix + hex.EncodeToString(sum[:]), nil
}

// installTokens tells Kubernetes of the gateways' tokens. The uses of one that is known are kept.
func (c *Cluster) installTokens(ctx context.Context) error {
	for _, edge := range numbered("edge", c.state.Spec.Edges) {
		data, err := os.ReadFile(c.layout.edge(edge).token())
		if err != nil {
			return fmt.Errorf("read the token of %s: %w", edge, err)
		}
		id, secret, ok := identity.SplitToken(strings.TrimSpace(string(data)))
		if !ok {
			return fmt.Errorf("the token of %s is none: remove %s", edge, c.layout.edge(edge).token())
		}
		manifest, err := json.Marshal(&corev1.Secret{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: identity.TokenNamespace, Name: identity.TokenName(id),
				Annotations: map[string]string{identity.AnnotationNode: edge, identity.AnnotationUses: "0"},
			},
			Type: identity.TokenType,
			StringData: map[string]string{
				"token-id": id, "token-secret": secret, "auth-extra-groups": identity.TokenGroup, "usage-bootstrap-authentication": "true",
			},
		})
		if err != nil {
			return fmt.Errorf("encode the token of %s: %w", edge, err)
		}
		if _, err := c.Kubectl(ctx, string(manifest), "apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-"); err != nil {
			return fmt.Errorf("install the token of %s: %w", edge, err)
		}
	}
	return nil
}

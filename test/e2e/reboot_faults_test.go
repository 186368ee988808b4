package e2e_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/leaf/store/seal"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

// edgeDataPath is a path below edge-2's data folder.
func edgeDataPath(elem ...string) string {
	return filepath.Join(append([]string{shared.Dir(), "edge-2", "data"}, elem...)...)
}

// ageTokens makes each token in the store of edge-2, which must be off, three hours older: real tokens of this cluster, signed
// with its key, that have expired. No clock is changed.
func ageTokens(t *testing.T) func(context.Context) error {
	t.Helper()
	return func(ctx context.Context) error {
		l := leaftest.StartLeaf(t, leaf.Config{Node: "edge-2", Dir: edgeDataPath("nats")})
		defer l.Stop()
		nc := l.Client()
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		keys, err := seal.Load(edgeDataPath("identity", "store.key"), zaptest.NewLogger(t))
		if err != nil {
			return err
		}
		s, err := store.Open(ctx, js, store.Config{HighWaterFile: edgeDataPath("store.mark"), Sealer: keys, IsSecret: localapi.IsSecret}, zaptest.NewLogger(t))
		if err != nil {
			return err
		}
		kept, _ := s.List("frond.io", "tokens", "")
		for _, e := range kept {
			record := map[string]any{}
			if err := json.Unmarshal(e.Object, &record); err != nil {
				return err
			}
			if err := ageRecord(record); err != nil {
				return err
			}
			object, err := json.Marshal(record)
			if err != nil {
				return err
			}
			if _, err := s.Put(ctx, e.Key, object, &e.Revision); err != nil {
				return err
			}
		}
		if len(kept) == 0 {
			return errors.New("the gateway has kept no token")
		}
		return nil
	}
}

const tokenAge = 3 * time.Hour

// ageRecord makes the TokenRequest in a kept token older.
func ageRecord(record map[string]any) error {
	var answer authenticationv1.TokenRequest
	raw, err := json.Marshal(record["answer"])
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return err
	}
	answer.Status.ExpirationTimestamp = metav1.NewTime(answer.Status.ExpirationTimestamp.Add(-tokenAge))
	if answer.Status.Token, err = ageToken(answer.Status.Token); err != nil {
		return err
	}
	record["answer"] = answer
	return nil
}

// ageToken makes a token of the cluster older, and signs it as the apiserver does.
func ageToken(token string) (string, error) {
	parts := strings.Split(token, ".")
	c, err := tokenClaims(token)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"iat", "nbf", "exp"} {
		at, ok := c[name].(float64)
		if !ok {
			return "", fmt.Errorf("claim %s is %v", name, c[name])
		}
		c[name] = int64(at) - int64(tokenAge.Seconds())
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(payload)
	text, err := os.ReadFile(filepath.Join(shared.Dir(), "pki", "sa.key"))
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", errors.New("sa.key holds no PEM block")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", err
	}
	signer, ok := key.(*rsa.PrivateKey)
	if !ok {
		return "", fmt.Errorf("sa.key is a %T", key)
	}
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, signer, crypto.SHA256, sum[:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature), err
}

func tokenClaims(token string) (map[string]any, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, fmt.Errorf("%d parts make no token", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, err
	}
	c := map[string]any{}
	return c, json.Unmarshal(payload, &c)
}

const (
	expiredTokens = "expired"
	freshTokens   = "fresh"
)

// awaitTokens waits until the tokens in the pods' volumes are expired ones, or fresh ones that the apiserver accepts.
func awaitTokens(t *testing.T, list []corev1.Pod, want string) {
	t.Helper()
	kube := sharedKube
	eventually(t, want+" tokens in the volumes", func(ctx context.Context) string {
		for i := range list {
			if list[i].Labels["set"] == "" {
				continue
			}
			token, err := volumeFile(&list[i], "kubernetes.io~projected", "all", "token")
			if err != nil {
				return err.Error()
			}
			c, err := tokenClaims(token)
			if err != nil {
				return err.Error()
			}
			end, _ := c["exp"].(float64)
			review, err := kube.AuthenticationV1().TokenReviews().Create(ctx,
				&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
			if err != nil {
				return err.Error()
			}
			ended := time.Unix(int64(end), 0).Before(time.Now().Add(-time.Hour))
			if ended != (want == expiredTokens) || review.Status.Authenticated != (want == freshTokens) {
				return fmt.Sprintf("%s: ended %v, accepted %v", list[i].Name, ended, review.Status.Authenticated)
			}
		}
		return ""
	})
}

// rebootDuringWrites cuts the power while the cloud changes twenty ConfigMaps of edge-2 without a pause. Afterwards the gateway
// holds values that were written, and its store is intact.
func rebootDuringWrites(t *testing.T, before []corev1.Pod) map[string]string {
	t.Helper()
	const maps = 20
	kube := sharedKube
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var g errgroup.Group
	written := 0
	g.Go(func() error {
		for ctx.Err() == nil {
			written++
			for i := range maps {
				if err := setConfigMap(ctx, kube, fmt.Sprintf("flow-%d", i), strconv.Itoa(written)); err != nil && ctx.Err() == nil {
					return err
				}
			}
		}
		return nil
	})
	eventually(t, "the changes flow", func(ctx context.Context) string {
		if n, err := strconv.Atoi(storedData(ctx, "edge-2", "flow-19", "v")); err != nil || n < 2 {
			return fmt.Sprintf("at %d: %v", n, err)
		}
		return ""
	})
	offline := rebootAndCheck(t, before, devcluster.Reboot{Sudden: true})
	stop()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	for i := range maps {
		n, err := strconv.Atoi(storedData(t.Context(), "edge-2", fmt.Sprintf("flow-%d", i), "v"))
		if err != nil || n < 1 || n > written {
			t.Errorf("flow-%d is at %d of %d: %v", i, n, written, err)
		}
	}
	if n := mustMetric(t, "edge-2", "frond_store_damaged_total"); n != 0 {
		t.Errorf("the store was damaged %v times", n)
	}
	return offline
}

// fillDisk returns a function that moves the gateway's data to a small disk, full to the last byte, while edge-2 is off.
// The kubelet's folder is not moved: a full disk of the kubelet is handled by its eviction. Before the test ends a
// last reboot restores the gateway's disk.
func fillDisk(t *testing.T) func(context.Context) error {
	t.Helper()
	disk, aside := edgeDataPath("nats"), t.TempDir()
	return func(context.Context) error {
		if err := os.CopyFS(aside, os.DirFS(disk)); err != nil {
			return err
		}
		size, err := bytesBelow(aside)
		if err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprintf("size=%d", size+8<<20)); err != nil {
			return fmt.Errorf("mount a small disk: %w", err)
		}
		t.Cleanup(func() { restoreDisk(t, disk) })
		if err := os.CopyFS(disk, os.DirFS(aside)); err != nil {
			return err
		}
		return fillFile(filepath.Join(disk, "filler"))
	}
}

// restoreDisk moves the content of the small disk back.
func restoreDisk(t *testing.T, disk string) {
	t.Helper()
	aside := t.TempDir()
	_, err := shared.Reboot(context.WithoutCancel(t.Context()), "edge-2", devcluster.Reboot{Timeout: waitTimeout, WhileOff: func(context.Context) error {
		if err := errors.Join(os.Remove(filepath.Join(disk, "filler")), os.CopyFS(aside, os.DirFS(disk)), unix.Unmount(disk, 0)); err != nil {
			return err
		}
		return errors.Join(os.RemoveAll(disk), os.CopyFS(disk, os.DirFS(aside)))
	}})
	if err != nil {
		t.Errorf("give edge-2 its disk back: %v", err)
	}
}

func bytesBelow(dir string) (int64, error) {
	var size int64
	return size, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		size += info.Size()
		return nil
	})
}

// fillFile writes a file until there is no space left.
func fillFile(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for chunk := make([]byte, 64<<10); ; {
		switch _, err := f.Write(chunk); {
		case errors.Is(err, unix.ENOSPC):
			return nil
		case err != nil:
			return err
		}
	}
}

// awaitLowDisk waits until the gateway's own Node reports that there is no space.
func awaitLowDisk(t *testing.T) {
	t.Helper()
	eventually(t, "EdgeStorage is False", func(ctx context.Context) string {
		raw, err := shared.StoreGet(ctx, "edge-2", wire.Key{Resource: "nodes", Name: "edge-2"})
		if err != nil {
			return err.Error()
		}
		var node corev1.Node
		if err := json.Unmarshal(raw, &node); err != nil {
			return err.Error()
		}
		for _, c := range node.Status.Conditions {
			if c.Type == "EdgeStorage" {
				if c.Status == corev1.ConditionFalse {
					return ""
				}
				return fmt.Sprintf("%s: %s", c.Status, c.Message)
			}
		}
		return "no such condition"
	})
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	agekey "filippo.io/age"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/backup"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/test/kit"
)

// backupFixture is the file of a test's backup, and its age key pair.
type backupFixture struct {
	*installedCluster
	file, recipient, identityFile string
}

func newBackupFixture(t *testing.T) backupFixture {
	t.Helper()
	pair, err := agekey.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	v := backupFixture{installedCluster: newInstalledCluster(t), file: filepath.Join(dir, "frond.backup"), recipient: pair.Recipient().String(), identityFile: filepath.Join(dir, "key")}
	if err := os.WriteFile(v.identityFile, []byte(pair.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	forget := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, names.AnnotationLastBackup) // of an earlier test
	if _, err := v.dynamicResource("namespaces", "").Patch(t.Context(), names.Namespace, types.MergePatchType, forget, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return v
}

// createdBackup is the output of frond backup create -o json.
type createdBackup struct {
	CAHash              string
	Secrets, Identities int
}

func (v backupFixture) createBackup() createdBackup {
	v.t.Helper()
	var done createdBackup
	if err := json.Unmarshal([]byte(v.mustRun("backup", "create", "--file", v.file, "--recipient", v.recipient, "-o", "json")), &done); err != nil {
		v.t.Fatal(err)
	}
	return done
}

// restoreBackup returns the action on each object of the backup, by kind and name.
func (v backupFixture) restoreBackup(more ...string) map[string]backup.Action {
	v.t.Helper()
	var r backup.Report
	out := v.mustRun(append([]string{"backup", "restore", "--file", v.file, "--identity-file", v.identityFile, "-o", "json"}, more...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		v.t.Fatal(err)
	}
	actions := map[string]backup.Action{}
	for _, o := range r.Objects {
		actions[o.Kind+" "+o.Name] = o.Action
	}
	return actions
}

// deleteNamespace deletes the namespace and all that is in it, as the controller manager does.
func (v backupFixture) deleteNamespace() {
	v.t.Helper()
	v.confirmDeletion("namespaces", "", names.Namespace, names.Namespace)
	if err := v.client.CoreV1().Namespaces().Delete(v.t.Context(), names.Namespace, metav1.DeleteOptions{}); err != nil {
		v.t.Fatal(err)
	}
	kit.Succeeds(v.t, time.Minute, func() error {
		_, err := v.client.CoreV1().Namespaces().Get(v.t.Context(), names.Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("the namespace is still there"), err)
	})
}

func TestBackup_RestoresADeletedNamespace(t *testing.T) {
	v := newBackupFixture(t)
	v.mustRun("init", "--hub-servers", "3", "--hub-url", "tls://hub.example.com:7422", "--cells", "8", "--taint-gateways")
	spec := func(letter string) identity.NodeIdentitySpec {
		return identity.NodeIdentitySpec{Key: userKey(letter), Issued: metav1.NewTime(time.Now().Truncate(time.Second)), Expires: metav1.NewTime(time.Now().Add(time.Hour).Truncate(time.Second))}
	}
	v.joinNode("kept", spec("A"))
	v.joinNode("revoked", spec("B"))
	v.joinNode("forgotten", spec("C"))
	v.setPorts(true)
	if _, _, errs := v.runCommand("init"); !strings.Contains(errs, "there is no backup of the keys") {
		t.Errorf("frond init without a backup says %q", errs)
	}
	files, settings, kept := v.secretFiles(), v.readSettings(), v.readSpec("kept")
	done := v.createBackup()
	if info, err := os.Stat(v.file); err != nil || info.Mode().Perm() != 0o600 || done.Secrets != 6 || done.Identities != 3 || done.CAHash != settings.CAHash {
		t.Errorf("%+v, %v, %v", done, info, err)
	}
	if _, _, errs := v.runCommand("init"); strings.Contains(errs, "backup") {
		t.Errorf("frond init does not know of the backup: %s", errs)
	}
	if code, _, errs := v.runCommand("backup", "create", "--file", v.file, "--recipient", v.recipient); code != 1 || !strings.Contains(errs, "exists") {
		t.Errorf("a second backup of the same name: code %d, %s", code, errs)
	}
	v.setLink("revoked", "False", names.ReasonRevoked) // as cloudcore does
	v.mustRun("node", "revoke", "revoked", "--yes")

	v.deleteNamespace()
	v.setPorts(false)
	v.confirmDeletion(identity.Resource+"."+identity.Group, "", "forgotten", "forgotten")
	if err := v.identityClient().Delete(t.Context(), "forgotten", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := v.runCommand("backup", "create", "--file", v.file+"2", "--recipient", v.recipient); code != 1 || !strings.Contains(errs, "frond init") {
		t.Errorf("a backup of nothing: code %d, %s", code, errs)
	}
	want := map[string]backup.Action{
		"Secret frond-ca": backup.Created, "Secret frond-cloudcore": backup.Created, "Secret frond-admin": backup.Created,
		"Secret frond-hub-0": backup.Created, "Secret frond-hub-1": backup.Created, "Secret frond-hub-2": backup.Created,
		"ConfigMap frond": backup.Created, "ConfigMap frond-cloudcore": backup.Created, "ConfigMap frond-hub-ca": backup.Created,
		"ConfigMap frond-node-ports": backup.Created,
		"NodeIdentity kept":          backup.Unchanged, "NodeIdentity revoked": backup.Kept, "NodeIdentity forgotten": backup.Created,
	}
	if diff := cmp.Diff(want, v.restoreBackup("--dry-run")); diff != "" {
		t.Errorf("a dry run (-want +got):\n%s", diff)
	}
	if len(v.secretFiles()) > 0 {
		t.Fatal("a dry run wrote")
	}
	if diff := cmp.Diff(want, v.restoreBackup()); diff != "" {
		t.Errorf("restored (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(files, v.secretFiles()); diff != "" {
		t.Errorf("keys (-before +restored):\n%s", diff)
	}
	if diff := cmp.Diff(settings, v.readSettings()); diff != "" {
		t.Errorf("settings (-before +restored):\n%s", diff)
	}
	if diff := cmp.Diff(kept, v.readSpec("kept")); diff != "" {
		t.Errorf("a gateway (-before +restored):\n%s", diff)
	}
	if got := v.readSpec("forgotten"); got.Key != userKey("C") {
		t.Errorf("a gateway whose identity was deleted: %+v", got)
	}
	if got := v.readSpec("revoked"); got.Key != "" || got.RevokedAt == nil {
		t.Errorf("a gateway that was revoked after the backup is let in: %+v", got)
	}
	if _, out, errs := v.runCommand("init"); !strings.Contains(out, "nothing to change") || strings.Contains(errs, "backup") {
		t.Errorf("frond init after that: %s%s", out, errs)
	}
	if out := v.mustRun("backup", "restore", "--file", v.file, "--identity-file", v.identityFile); !strings.Contains(out, "nothing to restore") {
		t.Errorf("a second time: %s", out)
	}
}

// setPorts creates or deletes the ConfigMap with the ports of gateways at the cloudcores.
func (v backupFixture) setPorts(there bool) {
	v.t.Helper()
	const name = "frond-node-ports"
	maps := v.client.CoreV1().ConfigMaps("kube-system")
	if !there {
		if err := maps.Delete(context.WithoutCancel(v.t.Context()), name, metav1.DeleteOptions{}); err != nil {
			v.t.Error(err)
		}
		return
	}
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"kept": "20000"}}
	if _, err := maps.Create(v.t.Context(), o, metav1.CreateOptions{}); err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { v.setPorts(false) })
}

// TestBackup_RestoresTheKind deletes the definition of NodeIdentities, and so all of them.
func TestBackup_RestoresTheKind(t *testing.T) {
	v := newBackupFixture(t)
	v.mustRun("init", "--hub-servers", "1")
	v.joinNode("gw-7", identity.NodeIdentitySpec{Key: userKey("G")})
	v.createBackup()
	const resource, name = "customresourcedefinitions.apiextensions.k8s.io", identity.Resource + "." + identity.Group
	v.confirmDeletion(resource, "", name, name)
	if err := v.dynamicResource(resource, "").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, time.Minute, func() error {
		_, err := v.dynamicResource(resource, "").Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("the definition is still there"), err)
	})
	if got := v.restoreBackup(); got["NodeIdentity gw-7"] != backup.Created || v.readSpec("gw-7").Key != userKey("G") {
		t.Errorf("restored: %v", got)
	}
}

func (v backupFixture) readSettings() install.Settings {
	v.t.Helper()
	settings, err := install.ReadSettings(v.t.Context(), v.client)
	if err != nil {
		v.t.Fatal(err)
	}
	return settings
}

func TestBackup_KeepsNewerKeys(t *testing.T) {
	v := newBackupFixture(t)
	v.mustRun("init", "--hub-servers", "1")
	old := v.secretFiles()
	v.createBackup()
	v.mustRun("init", "--rotate-certificates")
	rotated := v.secretFiles()
	if got := v.restoreBackup(); got["Secret frond-cloudcore"] != backup.Kept || got["Secret frond-ca"] != backup.Unchanged {
		t.Errorf("certificates that are newer: %v", got)
	}
	if diff := cmp.Diff(rotated, v.secretFiles()); diff != "" {
		t.Errorf("newer certificates are overwritten (-before +after):\n%s", diff)
	}
	// One Secret is lost: it is restored, and matches the newer ones.
	v.confirmAll()
	if err := v.client.CoreV1().Secrets(names.Namespace).Delete(t.Context(), install.FolderAdmin, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := v.restoreBackup(); got["Secret frond-admin"] != backup.Created || !bytes.Equal(v.secretFiles()["frond-admin/admin.nk"], old["frond-admin/admin.nk"]) {
		t.Errorf("a Secret that is lost: %v", got)
	}
	if got := v.restoreBackup("--replace"); got["Secret frond-cloudcore"] != backup.Replaced {
		t.Errorf("to be replaced: %v", got)
	}
	if diff := cmp.Diff(old, v.secretFiles()); diff != "" {
		t.Errorf("replaced (-backup +got):\n%s", diff)
	}
	// The CA was replaced since, and is lost: the one of the backup does not match the rest.
	v.mustRun("ca", "rotate", "add")
	v.mustRun("ca", "rotate", "switch", "--force")
	v.confirmAll()
	if err := v.client.CoreV1().Secrets(names.Namespace).Delete(t.Context(), install.FolderCA, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := v.runCommand("backup", "restore", "--file", v.file, "--identity-file", v.identityFile); code != 1 || !strings.Contains(errs, "the authority was replaced after this backup") {
		t.Errorf("the authority of before: code %d, %s", code, errs)
	}
	if _, there := v.secretFiles()["frond-ca/ca.key"]; there {
		t.Error("it was restored all the same")
	}
	v.restoreBackup("--replace")
	if diff := cmp.Diff(old, v.secretFiles()); diff != "" {
		t.Errorf("replaced (-backup +got):\n%s", diff)
	}
}

// TestBackup_OfAnotherCluster restores a backup of another cluster.
func TestBackup_OfAnotherCluster(t *testing.T) {
	v := newBackupFixture(t)
	v.mustRun("init", "--hub-servers", "1")
	v.createBackup()
	opened, err := os.Open(v.identityFile)
	if err != nil {
		t.Fatal(err)
	}
	decrypt, err := backup.NewIdentities(opened)
	data, fault := os.ReadFile(v.file)
	if err := errors.Join(err, fault, opened.Close()); err != nil {
		t.Fatal(err)
	}
	content, err := backup.Read(bytes.NewReader(data), decrypt)
	if err != nil {
		t.Fatal(err)
	}
	content.ClusterUID = "another"
	encrypt, err := backup.NewRecipients([]string{v.recipient})
	if err != nil {
		t.Fatal(err)
	}
	var written bytes.Buffer
	if err := errors.Join(backup.Write(&written, content, encrypt), os.WriteFile(v.file, written.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := v.runCommand("backup", "restore", "--file", v.file, "--identity-file", v.identityFile); code != 1 || !strings.Contains(errs, "of the cluster another") {
		t.Errorf("another cluster's: code %d, %s", code, errs)
	}
	for name, action := range v.restoreBackup("--other-cluster") {
		if action != backup.Unchanged {
			t.Errorf("%s: %s", name, action)
		}
	}
}

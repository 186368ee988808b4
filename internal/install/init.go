package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/kubeversion"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/internal/install/pki"
	"github.com/frond-edge/frond/internal/install/sizing"
)

// maxAttempts bounds how often Init starts again because another client wrote the same Secrets. Each time the other one made progress.
const maxAttempts = 10

// authorityWarning is how long before the CA's expiry administrators are warned: gateways that are offline for months must learn
// of the next one.
const authorityWarning = 2 * 365 * pki.Day

// backupWarning is the age of a backup from which administrators are warned: gateways renew their keys within 20 days, and a gateway that
// renewed twice since the backup is not admitted after a restore.
const backupWarning = 20 * pki.Day

// Options are the administrator's choices.
type Options struct {
	// Settings override earlier settings where they are not zero; CAHash is ignored.
	Settings Settings
	// Rotate issues all certificates again, with new keys.
	Rotate bool
	// DryRun only reports the planned changes.
	DryRun bool
	// KeysOnly writes only Secrets and ConfigMaps of Frond's namespace, of an installation that is there: for a job without rights elsewhere.
	KeysOnly bool
	// Files are used for the Secrets that the cluster lacks: a development cluster has them before it has an apiserver.
	Files Files
}

// Report lists the changes, done or, in a dry run, planned.
type Report struct {
	Settings
	Rollover  Rollover  `json:"rollover,omitzero"`
	Namespace string    `json:"namespace"`
	Objects   []Applied `json:"objects"`
	// Files are the files that were made, "Secret/entry".
	Files    []Change `json:"files"`
	Warnings []string `json:"warnings,omitempty"`
	// Plan is what the planned number of gateways needs, nil if none is planned.
	Plan *sizing.Plan `json:"plan,omitempty"`
	// Material is the content of the Secrets, all keys included.
	Material Files `json:"-"`
}

// Changed counts the objects that were written.
func (r Report) Changed() int {
	n := 0
	for _, o := range r.Objects {
		if o.Action != actionUnchanged {
			n++
		}
	}
	return n
}

// Init creates everything that Frond needs in a cluster and that is missing. It may be interrupted at any point and run again.
func Init(ctx context.Context, cfg *rest.Config, o Options, now time.Time) (Report, error) {
	return writeInstallation(ctx, cfg, o, func(have Files, s Settings) (Files, []Change, error) {
		return Fill(have, Spec{Servers: s.Servers(), Rotate: o.Rotate}, now)
	}, now)
}

// fillFunc returns the required files, given the existing ones.
type fillFunc func(have Files, s Settings) (Files, []Change, error)

func writeInstallation(ctx context.Context, cfg *rest.Config, o Options, fill fillFunc, now time.Time) (Report, error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return Report{}, fmt.Errorf("reach the cluster: %w", err)
	}
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return Report{}, fmt.Errorf("reach the cluster: %w", err)
	}
	for attempt := range maxAttempts {
		var r Report
		w := installWriter{client: client, applier: applier{client: objects, dryRun: o.DryRun}, fill: fill, presetFiles: o.Files, keysOnly: o.KeysOnly, now: now}
		r, err = w.runOnce(ctx, o.Settings)
		if attempt+1 < maxAttempts && (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)) {
			continue // another client wrote first: its files count
		}
		return r, err
	}
	return Report{}, err
}

type installWriter struct {
	applier
	client      kubernetes.Interface
	fill        fillFunc
	presetFiles Files // for missing Secrets
	keysOnly    bool
	now         time.Time
	versions    map[string]string // of the Secrets that were read
	// configuration is cloudcore's ConfigMap as it was read; empty if there is none.
	configuration corev1.ConfigMap
	// backupHint says why a backup is needed; "" where a recent one exists, or nothing is installed yet.
	backupHint string
}

func (w *installWriter) runOnce(ctx context.Context, asked Settings) (Report, error) {
	settings, have, err := w.readState(ctx, asked)
	if err != nil {
		return Report{}, err
	}
	files, changes, err := w.fill(have, settings)
	if err != nil {
		return Report{}, err
	}
	configured, err := renderHubConfigs(files, have, settings)
	if err != nil {
		return Report{}, err
	}
	changes = append(changes, configured...)
	if settings.CAHash, err = pki.CAHash(files[FolderCA+"/"+EntryBundle]); err != nil {
		return Report{}, err
	}
	rollover, err := RolloverOf(files)
	if err != nil {
		return Report{}, err
	}
	found, err := w.collectWarnings(settings, files)
	if err != nil {
		return Report{}, err
	}
	plan, err := settings.plan()
	if err != nil {
		return Report{}, err
	}
	r := Report{
		Settings: settings, Rollover: rollover, Namespace: names.Namespace, Files: changes, Objects: []Applied{}, Warnings: found, Plan: plan, Material: files,
	}
	fixed, err := loadManifests(settings, w.keysOnly)
	if err != nil {
		return r, err
	}
	for _, o := range fixed {
		done, err := w.applyObject(ctx, o)
		if err != nil {
			return r, err
		}
		r.Objects = append(r.Objects, done)
	}
	for _, folder := range files.folderNames() {
		done, err := w.writeSecret(ctx, folder, have.entriesOf(folder), files.entriesOf(folder))
		if err != nil {
			return r, err
		}
		r.Objects = append(r.Objects, done)
	}
	configuration, err := settings.mergeConfiguration(w.configuration.Data[cloudcoreConfig])
	if err != nil {
		return r, err
	}
	cloudcore := configMap(CloudcoreName, map[string]string{cloudcoreConfig: configuration})
	cloudcore.ResourceVersion = w.configuration.ResourceVersion // a concurrent edit is not overwritten
	return r, w.applyAll(ctx, &r, []runtime.Object{
		cloudcore,
		configMap(BundleName, map[string]string{EntryBundle: string(files.Bundle())}),
		settings.toConfigMap(), // last: it marks the installation as complete
	})
}

// collectWarnings returns what an administrator should know about the installation and its cluster.
func (w *installWriter) collectWarnings(settings Settings, files Files) ([]string, error) {
	found := collectWarnings(settings, files, w.now)
	if w.backupHint != "" {
		found = append(found, w.backupHint)
	}
	server, err := w.client.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("read the version of the cluster: %w", err)
	}
	if verdict := kubeversion.Evaluate(server.GitVersion); !verdict.Tested {
		found = append(found, verdict.Message)
	}
	return found, nil
}

func (w *installWriter) applyAll(ctx context.Context, r *Report, objects []runtime.Object) error {
	for _, object := range objects {
		o, err := toUnstructured(object)
		if err != nil {
			return err
		}
		done, err := w.applyObject(ctx, o)
		if err != nil {
			return err
		}
		r.Objects = append(r.Objects, done)
	}
	return nil
}

// readState returns the settings, merged with the requested ones, and all files.
func (w *installWriter) readState(ctx context.Context, asked Settings) (Settings, Files, error) {
	chosen, err := ReadSettings(ctx, w.client)
	if err != nil && (w.keysOnly || !errors.Is(err, ErrNotInstalled)) {
		return chosen, nil, err
	}
	if err == nil {
		if w.backupHint, err = w.backupDue(ctx); err != nil {
			return chosen, nil, err
		}
	}
	settings, err := chosen.mergeAsked(asked)
	if err != nil {
		return settings, nil, err
	}
	have := Files{}
	w.versions = map[string]string{}
	for _, folder := range settings.Folders() {
		o, err := w.client.CoreV1().Secrets(names.Namespace).Get(ctx, folder, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			have.Put(folder, w.presetFiles.entriesOf(folder))
			continue
		}
		if err != nil {
			return settings, nil, fmt.Errorf("read Secret %s: %w", folder, err)
		}
		w.versions[folder] = o.ResourceVersion
		have.Put(folder, o.Data)
	}
	o, err := w.client.CoreV1().ConfigMaps(names.Namespace).Get(ctx, CloudcoreName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return settings, nil, fmt.Errorf("read ConfigMap %s: %w", CloudcoreName, err)
	}
	w.configuration = *o
	return settings, have, nil
}

// backupDue says why an installation needs a backup, "" if a recent one exists.
func (w *installWriter) backupDue(ctx context.Context) (string, error) {
	ns, err := w.client.CoreV1().Namespaces().Get(ctx, names.Namespace, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read the namespace %s: %w", names.Namespace, err)
	}
	switch made := lastBackup(ns); {
	case made.IsZero():
		return "there is no backup of the keys: if they are deleted, every gateway must join again. Run frond backup create", nil
	case w.now.Sub(made) > backupWarning:
		return fmt.Sprintf("the last backup is of %s: run frond backup create", made.UTC().Format(time.DateOnly)), nil
	}
	return "", nil
}

// lastBackup returns the time of the last backup, zero if there was none or its time is unknown.
func lastBackup(ns *corev1.Namespace) time.Time {
	made, _ := time.Parse(time.RFC3339, ns.Annotations[names.AnnotationLastBackup]) // zero with an error
	return made
}

// writeSecret writes a Secret if it differs from what it must be, and only over the version that was read.
func (w *installWriter) writeSecret(ctx context.Context, name string, have, want map[string][]byte) (Applied, error) {
	done := Applied{Kind: "Secret", Namespace: names.Namespace, Name: name, Action: actionUnchanged}
	version, there := w.versions[name]
	if there && maps.EqualFunc(have, want, func(a, b []byte) bool { return string(a) == string(b) }) {
		return done, nil
	}
	o, err := toUnstructured(newSecret(name, want))
	if err != nil {
		return done, err
	}
	o.SetResourceVersion(version)
	if !there && !w.dryRun {
		if err := w.reserveSecret(ctx, o); err != nil {
			return done, err
		}
	}
	done, now, err := w.applyAndRead(ctx, o)
	if err != nil {
		return done, err
	}
	if !there {
		done.Action = actionCreated
	}
	return done, checkSurplus(name, want, now)
}

// checkSurplus finds entries that should be gone: server-side apply keeps those that another field manager wrote too.
func checkSurplus(name string, want map[string][]byte, now *unstructured.Unstructured) error {
	if now == nil {
		return nil
	}
	data, _, err := unstructured.NestedMap(now.Object, "data")
	if err != nil {
		return fmt.Errorf("read Secret %s: %w", name, err)
	}
	for entry := range data {
		if _, wanted := want[entry]; !wanted {
			return fmt.Errorf("entry %s of Secret %s must go, but another field manager owns it: delete it (kubectl -n %s edit secret %s), and run this again",
				entry, name, names.Namespace, name)
		}
	}
	return nil
}

func collectWarnings(s Settings, files Files, now time.Time) []string {
	var all []string
	if len(s.HubURLs) == 0 {
		all = append(all, "gateways do not know where the hub is: run frond init --hub-url tls://HOST:PORT before you make tokens")
	}
	if s.Nodes > s.Cells*maxNodesPerCell {
		all = append(all, fmt.Sprintf("%d gateways in %d cells are more than %d in each: links become expensive for the hub, and the number of cells stays",
			s.Nodes, s.Cells, maxNodesPerCell))
	}
	if s.Nodes > s.Partitions*sizing.MaxNodesPerPartition {
		all = append(all, fmt.Sprintf("%d gateways in %d partitions are more than %d in each: a server of the hub scans all of it when it starts (docs/operations/partitions.md)",
			s.Nodes, s.Partitions, sizing.MaxNodesPerPartition))
	}
	if cert, err := mint.ParseCertificate(files[FolderCA+"/"+EntryBundle]); err == nil && cert.NotAfter.Sub(now) < authorityWarning {
		all = append(all, fmt.Sprintf("the authority ends on %s: begin frond ca rotate", cert.NotAfter.UTC().Format(time.DateOnly)))
	}
	return all
}

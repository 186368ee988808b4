package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/internal/install/pki"
)

// A CA is replaced in three steps, with time between them for gateways to learn of it:
//
//	add     the next CA is made, and all components and gateways trust both
//	switch  the next CA signs; all certificates are issued again by it
//	drop    the previous CA is no longer trusted
//
// Settings that are not given again keep their values from the last step.
//
// With switch the previous CA cross-signs the next (vouchers.crt), and servers show that certificate while it is valid. A gateway that
// was offline during all three steps trusts the previous CA, and so the hub, and learns of the next when it renews its key.

// Step is a step of a rollover.
type Step string

// The steps.
const (
	StepAdd    Step = "add"
	StepSwitch Step = "switch"
	StepDrop   Step = "drop"
)

// Rollover is the progress of a CA rollover.
type Rollover struct {
	// Next is the hash of the CA that will sign, Previous of the one that signed before; "" is none.
	Next     string `json:"next,omitempty"`
	Previous string `json:"previous,omitempty"`
	// Added is when Next was made.
	Added time.Time `json:"added,omitzero"`
}

// spreadTime is how long after its creation a CA may be unknown to a cloudcore: Kubernetes takes a minute or two to update a
// Secret in a pod, more on a busy node, and cloudcore reads the file again at intervals. Clocks differ, too.
const spreadTime = 15 * time.Minute

// KnownSince is the time from which every cloudcore sends gateways the Next CA: a gateway that renewed its key since then knows it.
func (r Rollover) KnownSince() time.Time { return r.Added.Add(spreadTime) }

// RolloverOf reads the rollover's progress from the files.
func RolloverOf(files Files) (r Rollover, err error) {
	current := files[FolderCA+"/"+EntryBundle]
	for entry, hash := range map[string]*string{entryNext: &r.Next, entryPrevious: &r.Previous} {
		data := files[FolderCA+"/"+entry]
		if len(data) == 0 || bytes.Equal(data, current) {
			continue
		}
		if *hash, err = pki.CAHash(data); err != nil {
			return r, fmt.Errorf("read %s/%s: %w", FolderCA, entry, err)
		}
		if entry == entryNext {
			cert, err := mint.ParseCertificate(data)
			if err != nil {
				return r, err
			}
			r.Added = cert.NotBefore.Add(pki.ClockSkew)
		}
	}
	return r, nil
}

// advanceStep takes one step in the files. A step that was already taken changes nothing.
func advanceStep(have Files, step Step, now time.Time) (Files, []Change, error) {
	r, err := RolloverOf(have)
	if err != nil {
		return nil, nil, err
	}
	f := &filler{have: have, files: maps.Clone(have), now: now}
	in := func(entry string) string { return FolderCA + "/" + entry }
	switch {
	case len(have[in(EntryBundle)]) == 0:
		return nil, nil, ErrNotInstalled
	case step == StepAdd && r.Previous != "":
		return nil, nil, fmt.Errorf("the change before this one is not at its end: the authority %s is still believed. Run frond ca rotate drop first", r.Previous)
	case step == StepAdd && r.Next == "":
		key, data, err := pki.NewKey()
		if err != nil {
			return nil, nil, err
		}
		cert, err := pki.Sign(key, now)
		if err != nil {
			return nil, nil, err
		}
		f.setFile(in(entryNext), cert, "the next authority")
		f.setFile(in(entryNextKey), data, "the next authority")
	case step == StepSwitch && r.Next == "" && r.Previous == "":
		return nil, nil, errors.New("there is no next authority: run frond ca rotate add first")
	case step == StepSwitch && r.Next != "":
		voucher, err := pki.CrossSign(in(EntryBundle), have[in(EntryBundle)], have[in(EntryAuthorityKey)], have[in(entryNext)])
		if err != nil {
			return nil, nil, err
		}
		if vouchers := append(voucher, pki.DropExpired(have[in(entryCrossSigned)], now)...); len(vouchers) > 0 {
			f.setFile(in(entryCrossSigned), vouchers, "the authority until now vouches for the next")
		}
		f.setFile(in(entryPrevious), have[in(EntryBundle)], "the authority until now")
		f.setFile(in(EntryBundle), have[in(entryNext)], "the next authority signs")
		f.setFile(in(EntryAuthorityKey), have[in(entryNextKey)], "the next authority signs")
		delete(f.files, in(entryNext))
		delete(f.files, in(entryNextKey))
	case step == StepDrop:
		for _, entry := range []string{entryNext, entryNextKey, entryPrevious} {
			delete(f.files, in(entry))
		}
	}
	return f.files, f.changes, nil
}

// Rotate takes one step of a CA rollover, and makes the certificates and bundles that follow from it.
func Rotate(ctx context.Context, cfg *rest.Config, step Step, o Options, now time.Time) (Report, error) {
	return writeInstallation(ctx, cfg, o, func(have Files, s Settings) (Files, []Change, error) {
		files, changes, err := advanceStep(have, step, now)
		if err != nil {
			return nil, nil, err
		}
		filled, further, err := Fill(files, Spec{Servers: s.Servers()}, now)
		return filled, append(changes, further...), err
	}, now)
}

// ReadRollover reads the rollover's progress from the cluster.
func ReadRollover(ctx context.Context, client kubernetes.Interface) (Rollover, error) {
	o, err := client.CoreV1().Secrets(names.Namespace).Get(ctx, FolderCA, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Rollover{}, ErrNotInstalled
	}
	if err != nil {
		return Rollover{}, fmt.Errorf("read Secret %s: %w", FolderCA, err)
	}
	files := Files{}
	files.Put(FolderCA, o.Data)
	return RolloverOf(files)
}

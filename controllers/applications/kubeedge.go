package applications

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/csaupgrade"
)

const (
	// annotationKubeEdgeTemplate is on the objects that KubeEdge's controller made.
	annotationKubeEdgeTemplate = "apps.kubeedge.io/last-applied-template"
	// managerKubeEdge is the field manager of that controller: the name of its program.
	managerKubeEdge = "controllermanager"
)

// takeFields makes the fields of an object that KubeEdge's controller set those of this one. Otherwise what is later removed from a manifest would stay in
// the object, because the old owner, which is gone, still wants it.
func takeFields(ctx context.Context, client dynamic.ResourceInterface, live *unstructured.Unstructured) error {
	annotations := live.GetAnnotations()
	if annotations[annotationKubeEdgeTemplate] == "" || annotations[annotationDigest] != "" {
		return nil
	}
	whole, err := getObject(ctx, client, live.GetName())
	if err != nil || whole == nil {
		return err
	}
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(whole, sets.New(managerKubeEdge), fieldManager)
	if err != nil {
		return fmt.Errorf("understand who set the fields: %w", err)
	}
	if len(patch) == 0 {
		return nil
	}
	if _, err := client.Patch(ctx, live.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("take over the fields that KubeEdge set: %w", err)
	}
	return nil
}

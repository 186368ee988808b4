package policy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/deploy/policy"
)

// TestManifests_UseTheNamesOfTheAPI looks at each name that is written in a policy and stands in api/protection, too.
func TestManifests_UseTheNamesOfTheAPI(t *testing.T) {
	text := strings.Join(policy.Manifests(), "\n")
	known := []string{names.LabelEdge, names.LabelProtected, names.AnnotationConfirmDeletion, names.AnnotationDeviceHolder, names.AnnotationForceMove}
	for _, name := range regexp.MustCompile(`\b(frond\.io|node-role\.kubernetes\.io)/[a-z-]+`).FindAllString(text, -1) {
		if !slices.Contains(known, name) {
			t.Errorf("a policy names %s, which is not in api/protection", name)
		}
	}
	for _, name := range known {
		if !strings.Contains(text, name) {
			t.Errorf("no policy names %s", name)
		}
	}
}

// TestManifests_EachPolicyRefuses looks for policies that would let through: without a binding that denies, or open when they fail.
func TestManifests_EachPolicyRefuses(t *testing.T) {
	denied, policies := map[string]bool{}, map[string]bool{}
	for _, text := range policy.Manifests() {
		for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096); ; {
			var document json.RawMessage
			err := decoder.Decode(&document)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			var rule admissionregistrationv1.ValidatingAdmissionPolicy
			var binding admissionregistrationv1.ValidatingAdmissionPolicyBinding
			if err := errors.Join(json.Unmarshal(document, &rule), json.Unmarshal(document, &binding)); err != nil {
				t.Fatal(err)
			}
			if rule.Kind == "ValidatingAdmissionPolicyBinding" {
				if slices.Contains(binding.Spec.ValidationActions, admissionregistrationv1.Deny) {
					denied[binding.Spec.PolicyName] = true
				}
				continue
			}
			policies[rule.Name] = true
			if rule.Spec.FailurePolicy == nil || *rule.Spec.FailurePolicy != admissionregistrationv1.Fail || len(rule.Spec.Validations) == 0 {
				t.Errorf("%s %s lets through what it cannot evaluate", rule.Kind, rule.Name)
			}
		}
	}
	if diff := cmp.Diff(policies, denied); diff != "" || len(policies) < 5 {
		t.Errorf("policies (-that are there +that a binding enforces):\n%s", diff)
	}
	if !policies[policy.BindingsPolicy] {
		t.Errorf("there is no %s", policy.BindingsPolicy)
	}
}

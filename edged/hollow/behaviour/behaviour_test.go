package behaviour_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/edged/hollow/behaviour"
)

func TestParse(t *testing.T) {
	for name, tt := range map[string]struct {
		command          []string
		env, annotations map[string]string
		want             behaviour.Behaviour
	}{
		"image default":   {nil, nil, nil, behaviour.Behaviour{}},
		"server":          {[]string{"nginx", "-g", "daemon off;"}, nil, nil, behaviour.Behaviour{}},
		"sleep for ever":  {[]string{"sleep", "infinity"}, nil, nil, behaviour.Behaviour{}},
		"script":          {[]string{"/bin/sh", "-c", "echo 'a b'; sleep 2 && echo c; exit 7"}, nil, nil, behaviour.Behaviour{Output: []behaviour.Line{{Text: "a b"}, {After: 2 * time.Second, Text: "c"}}, Ends: true, EndAfter: 2 * time.Second, Code: 7}},
		"talking server":  {[]string{"sh", "-ec", "echo up\nexec nginx"}, nil, nil, behaviour.Behaviour{Output: []behaviour.Line{{Text: "up"}}}},
		"annotations":     {nil, nil, map[string]string{behaviour.AnnotationExitAfter: "1s", behaviour.AnnotationExitCode: "2"}, behaviour.Behaviour{Ends: true, EndAfter: time.Second, Code: 2}},
		"env wins":        {nil, map[string]string{"HOLLOW_EXIT_CODE": "5"}, map[string]string{behaviour.AnnotationExitAfter: "0s", behaviour.AnnotationExitCode: "2"}, behaviour.Behaviour{Ends: true, Code: 5}},
		"only code":       {[]string{"true"}, nil, map[string]string{behaviour.AnnotationExitCode: "9"}, behaviour.Behaviour{Ends: true, Code: 9}},
		"slow to stop":    {nil, nil, map[string]string{behaviour.AnnotationStopAfter: "3s"}, behaviour.Behaviour{StopAfter: 3 * time.Second}},
		"does not start":  {nil, nil, map[string]string{behaviour.AnnotationStartError: "no such file"}, behaviour.Behaviour{StartError: "no such file"}},
		"last one counts": {[]string{"sh", "-c", "true; false"}, nil, nil, behaviour.Behaviour{Ends: true, Code: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := behaviour.Parse(tt.command, tt.env, tt.annotations)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("behaviour (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := behaviour.Parse(nil, nil, map[string]string{behaviour.AnnotationExitAfter: "soon"}); err == nil {
		t.Error("a duration that is none was accepted")
	}
}

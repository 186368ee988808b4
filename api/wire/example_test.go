package wire_test

import (
	"fmt"

	"github.com/frond-edge/frond/api/wire"
)

// A key has a form of four NATS tokens and a readable form.
func ExampleKey() {
	key := wire.Key{Group: "apps", Resource: "deployments", Namespace: "default", Name: "web.example"}
	fmt.Println(key)
	fmt.Println(key.Human())

	back, err := wire.ParseKey("core.configmaps.default.kube-root-ca_crt")
	fmt.Println(back.Name, err)
	// Output:
	// apps.deployments.default.web_example
	// deployments.apps default/web.example
	// kube-root-ca.crt <nil>
}

// Escape turns any text into one NATS token; Unescape turns it back.
func ExampleEscape() {
	token := wire.Escape("system:node:gw-17.example")
	text, err := wire.Unescape(token)
	fmt.Println(token)
	fmt.Println(text, err)
	// Output:
	// system=3Anode=3Agw-17_example
	// system:node:gw-17.example <nil>
}

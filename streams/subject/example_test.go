package subject_test

import (
	"fmt"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// Every object of every node has one subject in each plane.
func ExampleOf() {
	page := wire.Key{Resource: "configmaps", Namespace: "default", Name: "page"}
	name := subject.Of(subject.Desired, "gw-17.plant", page)
	fmt.Println(name)
	fmt.Println(subject.Filter(subject.Desired, "gw-17.plant"))

	plane, node, key, err := subject.Parse(name)
	fmt.Println(plane, node, key.Human(), err)
	// Output:
	// desired.gw-17_plant.core.configmaps.default.page
	// desired.gw-17_plant.>
	// desired gw-17.plant configmaps default/page <nil>
}

// A node may publish and subscribe to its own subjects and no others.
func ExampleNodePermissions() {
	publish, subscribe := subject.NodePermissions("gw-17")
	fmt.Println(publish[0])
	fmt.Println(subscribe[len(subscribe)-1])
	// Output:
	// report.gw-17.>
	// _INBOX.gw-17.>
}

package config_test

import (
	"fmt"

	"github.com/frond-edge/frond/api/config"
)

// A file is parsed strictly and completed with defaults, and all its errors are reported at once.
func ExampleParseEdgeCore() {
	_, err := config.ParseEdgeCore([]byte("node: gw-17\ndir: data\nhub: {urls: [hub-1]}\n"))
	fmt.Println(err)
	_, err = config.ParseEdgeCore([]byte("node: gw-17\ncolour: green\n"))
	fmt.Println(err)
	// Output:
	// hub.urls[0]: "hub-1" is not scheme://host:port
	// dir: "data" is not an absolute path
	// runtime.endpoint: required unless runtime.hollow is true
	// error unmarshaling JSON: while decoding JSON: json: unknown field "colour"
}

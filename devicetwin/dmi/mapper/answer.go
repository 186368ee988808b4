package mapper

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

// maxAnswer keeps an answer below the 4 MiB that a client of gRPC takes: a mapper whose registration fails ends.
const maxAnswer = 3 << 20

// answer returns what a mapper gets when it registers, and the devices in it. Those that do not fit come later by calls, as do those whose model has
// the name of another namespace's: a mapper of KubeEdge's framework finds the models of this answer by name alone.
func answer(entries map[types.NamespacedName]*entry) (*dmipb.MapperRegisterResponse, map[types.NamespacedName]bool) {
	response, given := &dmipb.MapperRegisterResponse{}, map[types.NamespacedName]bool{}
	ids := make([]types.NamespacedName, 0, len(entries))
	for id, e := range entries {
		if e.want != nil {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, compareNames)
	size, namespaces := 0, map[string]string{}
	for _, id := range ids {
		w := entries[id].want
		size += proto.Size(w.device) + proto.Size(w.model)
		namespace, named := namespaces[w.model.GetName()]
		if size > maxAnswer || named && namespace != w.model.GetNamespace() {
			continue
		}
		if !named {
			namespaces[w.model.GetName()] = w.model.GetNamespace()
			response.ModelList = append(response.ModelList, w.model)
		}
		response.DeviceList, given[id] = append(response.DeviceList, w.device), true
	}
	return response, given
}

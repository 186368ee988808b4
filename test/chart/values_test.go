package chart_test

// freeForm are maps whose keys the user chooses; their defaults are one value each.
var freeForm = map[string]bool{
	"hub.resources": true, "cloudcore.resources": true, "monitoring.dashboard.labels": true,
}

// changedValue is another value than the default, with further values that it needs to matter, and a text that the objects then have.
type changedValue struct {
	value, shows string
	with         []string
}

var changedValues = map[string]changedValue{
	"global.imageRegistry":              {value: "mirror.example.com", shows: "image: mirror.example.com/nats:"},
	"global.imagePullSecrets":           {value: `[{"name":"login"}]`, shows: "- name: login"},
	"hub.servers":                       {value: "5", shows: "replicas: 5"},
	"hub.image.repository":              {value: "example.com/nats", shows: "image: example.com/nats:"},
	"hub.image.tag":                     {value: "9.9.9", shows: "image: nats:9.9.9"},
	"hub.image.digest":                  {value: digestOfTest, shows: "image: nats@" + digestOfTest},
	"hub.image.pullPolicy":              {value: "Always", shows: "imagePullPolicy: Always"},
	"hub.resources":                     {value: `{"limits":{"memory":"7Gi"}}`, shows: "memory: 7Gi"},
	"hub.goMemoryLimit":                 {value: "6GiB", shows: "value: 6GiB"},
	"hub.storage.size":                  {value: "77Gi", shows: "storage: 77Gi"},
	"hub.storage.className":             {value: "fast", shows: "storageClassName: fast"},
	"hub.storage.whenDeleted":           {value: "Delete", shows: "whenDeleted: Delete"},
	"hub.service.type":                  {value: "NodePort", shows: "type: NodePort"},
	"hub.service.annotations":           {value: `{"a":"b"}`, shows: "a: b"},
	"hub.service.loadBalancerClass":     {value: "example.com/lb", shows: "loadBalancerClass: example.com/lb"},
	"hub.service.externalTrafficPolicy": {value: "Local", shows: "externalTrafficPolicy: Local"},
	"hub.service.ports.leaf":            {value: "7777", shows: "port: 7777"},
	"hub.service.ports.websocket":       {value: "8443", shows: "port: 8443"},
	"hub.service.nodePorts.leaf":        {value: "30722", shows: "nodePort: 30722"},
	"hub.service.nodePorts.websocket":   {value: "30443", shows: "nodePort: 30443"},
	"hub.linkRate.enabled":              {value: "true", shows: "name: link-rate", with: []string{"hub.linkRate.image.repository=nft", "hub.linkRate.image.tag=v1"}},
	"hub.linkRate.image.repository":     {value: "nft2", shows: "image: nft2:v1", with: withLinkRate},
	"hub.linkRate.image.tag":            {value: "two", shows: "image: nft:two", with: withLinkRate},
	"hub.linkRate.image.digest":         {value: digestOfTest, shows: "image: nft@" + digestOfTest, with: withLinkRate},
	"hub.linkRate.image.pullPolicy":     {value: "Never", shows: "imagePullPolicy: Never", with: withLinkRate},
	"hub.linkRate.perSecond":            {value: "222", shows: `value: "222"`, with: withLinkRate},
	"hub.linkRate.burst":                {value: "444", shows: `value: "444"`, with: withLinkRate},
	"hub.podAnnotations":                {value: `{"c":"d"}`, shows: "c: d"},
	"hub.nodeSelector":                  {value: `{"disk":"ssd"}`, shows: "disk: ssd"},
	"hub.tolerations":                   {value: `[{"key":"hub","operator":"Exists"}]`, shows: "key: hub"},
	"hub.priorityClassName":             {value: "high", shows: "priorityClassName: high"},
	"cloudcore.replicas":                {value: "4", shows: "replicas: 4"},
	"cloudcore.image.repository":        {value: "example.com/cloudcore", shows: "image: example.com/cloudcore:"},
	"cloudcore.image.tag":               {value: "8.8.8", shows: "cloudcore:8.8.8"},
	"cloudcore.image.digest":            {value: digestOfTest, shows: "cloudcore@" + digestOfTest},
	"cloudcore.image.pullPolicy":        {value: "Always", shows: "imagePullPolicy: Always"},
	"cloudcore.resources":               {value: `{"limits":{"memory":"5Gi"}}`, shows: "memory: 5Gi"},
	"cloudcore.goMemoryLimit":           {value: "4GiB", shows: "value: 4GiB"},
	"cloudcore.podAnnotations":          {value: `{"e":"f"}`, shows: "e: f"},
	"cloudcore.nodeSelector":            {value: `{"pool":"core"}`, shows: "pool: core"},
	"cloudcore.tolerations":             {value: `[{"key":"core","operator":"Exists"}]`, shows: "key: core"},
	"cloudcore.priorityClassName":       {value: "higher", shows: "priorityClassName: higher"},
	"networkPolicy.enabled":             {value: "false"},
	"podDisruptionBudget.enabled":       {value: "false"},
	"spreadOverZones":                   {value: "false"},
	"renewal.enabled":                   {value: "true", shows: "kind: CronJob"},
	"renewal.schedule":                  {value: "1 2 3 4 5", shows: `schedule: "1 2 3 4 5"`, with: []string{"renewal.enabled=true"}},
	"monitoring.podMonitor.enabled":     {value: "true", shows: "kind: PodMonitor"},
	"monitoring.podMonitor.interval":    {value: "77s", shows: "interval: 77s", with: []string{"monitoring.podMonitor.enabled=true"}},
	"monitoring.podMonitor.labels":      {value: `{"g":"h"}`, shows: "g: h", with: []string{"monitoring.podMonitor.enabled=true"}},
	"monitoring.prometheusRule.enabled": {value: "true", shows: "alert: FrondKeyEndsSoon"},
	"monitoring.prometheusRule.labels":  {value: `{"i":"j"}`, shows: "i: j", with: []string{"monitoring.prometheusRule.enabled=true"}},
	"monitoring.dashboard.enabled":      {value: "true", shows: "frond.json:"},
	"monitoring.dashboard.labels":       {value: `{"k":"l"}`, shows: "k: l", with: []string{"monitoring.dashboard.enabled=true"}},
}

const digestOfTest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

var withLinkRate = []string{"hub.linkRate.enabled=true", "hub.linkRate.image.repository=nft", "hub.linkRate.image.tag=v1"}

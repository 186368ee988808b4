package devices

import "k8s.io/apimachinery/pkg/runtime"

// PushMethod is where a mapper sends a property, beside the reports to the gateway. Frond passes it on to the mapper.
//
// +kubebuilder:object:generate=true
type PushMethod struct {
	HTTP     *PushMethodHTTP `json:"http,omitempty"`
	MQTT     *PushMethodMQTT `json:"mqtt,omitempty"`
	DBMethod *DBMethodConfig `json:"dbMethod,omitempty"`
	OTEL     *PushMethodOTEL `json:"otel,omitempty"`
	// AnomalyDetection is a JSON object of the mapper's own. A mapper of KubeEdge ignores it beside HTTP or MQTT.
	//
	// +kubebuilder:pruning:PreserveUnknownFields
	AnomalyDetection *runtime.RawExtension `json:"anomalyDetection,omitempty"`
}

// PushMethodHTTP is an address of HTTP.
//
// +kubebuilder:object:generate=true
type PushMethodHTTP struct {
	// HostName includes the scheme.
	HostName string `json:"hostName,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Port        int64  `json:"port,omitempty"`
	RequestPath string `json:"requestPath,omitempty"`
	Timeout     int64  `json:"timeout,omitempty"`
}

// PushMethodMQTT is a topic at a broker.
//
// +kubebuilder:object:generate=true
type PushMethodMQTT struct {
	Address string `json:"address,omitempty"`
	Topic   string `json:"topic,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2
	QoS      int32 `json:"qos,omitempty"`
	Retained bool  `json:"retained,omitempty"`
}

// PushMethodOTEL is a collector of OpenTelemetry.
//
// +kubebuilder:object:generate=true
type PushMethodOTEL struct {
	EndpointURL string `json:"endpointURL,omitempty"`
}

// DBMethodConfig is a database.
//
// +kubebuilder:object:generate=true
type DBMethodConfig struct {
	Influxdb2 *DBMethodInfluxdb2 `json:"influxdb2,omitempty"`
	Redis     *DBMethodRedis     `json:"redis,omitempty"`
	TDEngine  *DBMethodTDEngine  `json:"TDEngine,omitempty"`
	MySQL     *DBMethodMySQL     `json:"mysql,omitempty"`
}

// DBMethodInfluxdb2 is an InfluxDB; the mapper has its token from its environment.
//
// +kubebuilder:object:generate=true
type DBMethodInfluxdb2 struct {
	ClientConfig *Influxdb2ClientConfig `json:"influxdb2ClientConfig,omitempty"`
	DataConfig   *Influxdb2DataConfig   `json:"influxdb2DataConfig,omitempty"`
}

// Influxdb2ClientConfig says where the database is.
//
// +kubebuilder:object:generate=true
type Influxdb2ClientConfig struct {
	URL    string `json:"url,omitempty"`
	Org    string `json:"org,omitempty"`
	Bucket string `json:"bucket,omitempty"`
}

// Influxdb2DataConfig says how the property is stored.
//
// +kubebuilder:object:generate=true
type Influxdb2DataConfig struct {
	Measurement string            `json:"measurement,omitempty"`
	Tag         map[string]string `json:"tag,omitempty"`
	FieldKey    string            `json:"fieldKey,omitempty"`
}

// DBMethodRedis is a Redis; the mapper has its password from its environment.
//
// +kubebuilder:object:generate=true
type DBMethodRedis struct {
	ClientConfig *RedisClientConfig `json:"redisClientConfig,omitempty"`
}

// RedisClientConfig says where the database is.
//
// +kubebuilder:object:generate=true
type RedisClientConfig struct {
	Addr         string `json:"addr,omitempty"`
	DB           int    `json:"db,omitempty"`
	PoolSize     int    `json:"poolsize,omitempty"`
	MinIdleConns int    `json:"minIdleConns,omitempty"`
}

// DBMethodTDEngine is a TDengine.
//
// +kubebuilder:object:generate=true
type DBMethodTDEngine struct {
	ClientConfig *TDEngineClientConfig `json:"TDEngineClientConfig,omitempty"`
}

// TDEngineClientConfig says where the database is.
//
// +kubebuilder:object:generate=true
type TDEngineClientConfig struct {
	Addr   string `json:"addr,omitempty"`
	DBName string `json:"dbName,omitempty"`
}

// DBMethodMySQL is a MySQL; the mapper has its password from its environment.
//
// +kubebuilder:object:generate=true
type DBMethodMySQL struct {
	ClientConfig *MySQLClientConfig `json:"mysqlClientConfig,omitempty"`
}

// MySQLClientConfig says where the database is.
//
// +kubebuilder:object:generate=true
type MySQLClientConfig struct {
	Addr     string `json:"addr,omitempty"`
	Database string `json:"database,omitempty"`
	UserName string `json:"userName,omitempty"`
}

package message

import (
	"math"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

// pushMethod converts where the mapper itself sends a property. Nil stays nil.
func pushMethod(n *notes, property string, p *devices.PushMethod) *dmipb.PushMethod {
	if p == nil {
		return nil
	}
	push := &dmipb.PushMethod{DbMethod: dbMethod(p.DBMethod)}
	if p.HTTP != nil {
		push.Http = &dmipb.PushMethodHTTP{Hostname: p.HTTP.HostName, Port: p.HTTP.Port, Requestpath: p.HTTP.RequestPath, Timeout: p.HTTP.Timeout}
	}
	if p.MQTT != nil {
		push.Mqtt = &dmipb.PushMethodMQTT{Address: p.MQTT.Address, Topic: p.MQTT.Topic, Qos: p.MQTT.QoS, Retained: p.MQTT.Retained}
	}
	if p.OTEL != nil {
		push.Otel = &dmipb.PushMethodOTEL{EndpointURL: p.OTEL.EndpointURL}
	}
	if p.AnomalyDetection != nil {
		field := "anomalyDetection of property " + property
		push.AnomalyDetection = &dmipb.AnomalyDetection{Data: n.anyValues(field, n.object(field, p.AnomalyDetection))}
	}
	return push
}

// dbMethod converts a database. A client's part is never nil: a mapper encodes it without a check.
func dbMethod(db *devices.DBMethodConfig) *dmipb.DBMethod {
	if db == nil {
		return nil
	}
	method := &dmipb.DBMethod{}
	if db.Influxdb2 != nil {
		client, data := value(db.Influxdb2.ClientConfig), value(db.Influxdb2.DataConfig)
		method.Influxdb2 = &dmipb.DBMethodInfluxdb2{
			Influxdb2ClientConfig: &dmipb.Influxdb2ClientConfig{Url: client.URL, Org: client.Org, Bucket: client.Bucket},
			Influxdb2DataConfig:   &dmipb.Influxdb2DataConfig{Measurement: data.Measurement, Tag: data.Tag, FieldKey: data.FieldKey},
		}
	}
	if db.Redis != nil {
		client := value(db.Redis.ClientConfig)
		method.Redis = &dmipb.DBMethodRedis{RedisClientConfig: &dmipb.RedisClientConfig{
			Addr: client.Addr, Db: int32Of(client.DB), Poolsize: int32Of(client.PoolSize), MinIdleConns: int32Of(client.MinIdleConns),
		}}
	}
	if db.TDEngine != nil {
		client := value(db.TDEngine.ClientConfig)
		method.Tdengine = &dmipb.DBMethodTDEngine{TdEngineClientConfig: &dmipb.TDEngineClientConfig{Addr: client.Addr, Dbname: client.DBName}}
	}
	if db.MySQL != nil {
		client := value(db.MySQL.ClientConfig)
		method.Mysql = &dmipb.DBMethodMySQL{MysqlClientConfig: &dmipb.MySQLClientConfig{Addr: client.Addr, Database: client.Database, UserName: client.UserName}}
	}
	return method
}

// value returns what p points to, or the zero value.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// int32Of returns the nearest number of 32 bits.
func int32Of(i int) int32 { return int32(max(math.MinInt32, min(math.MaxInt32, i))) }

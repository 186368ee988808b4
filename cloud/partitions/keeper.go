package partitions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// BalancerName is what the one replica that balances the leaders owns. It is no node's name, but distributed like one.
const BalancerName = "frond-partitions"

// Keeper checks that the layout stays as it was at the start, and spreads the leaders of the partitions: each server's death is then felt
// by its share of the nodes only. NATS elects leaders wherever it wants, and a server that was restarted leads nothing by itself.
type Keeper struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	registry jetstream.KeyValue
	layout   subject.Layout
	// owns reports whether this replica owns a name.
	owns    func(name string) bool
	leaders *prometheus.GaugeVec
	moved   prometheus.Counter
	log     *zap.Logger
	seen    []partition // by the previous look
}

// NewKeeper returns the keeper of a hub that Agree was called for.
func NewKeeper(nc *nats.Conn, registry jetstream.KeyValue, layout subject.Layout, owns func(name string) bool, reg prometheus.Registerer, log *zap.Logger) (*Keeper, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("partitions: %w", err)
	}
	f := promauto.With(reg)
	return &Keeper{
		nc: nc, js: js, registry: registry, layout: layout, owns: owns, log: log,
		leaders: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "frond_hub_partition_leaders", Help: "Partitions of the desired state that a server of the hub leads; of one cloudcore only.",
		}, []string{"server"}),
		moved: f.NewCounter(prometheus.CounterOpts{
			Name: "frond_hub_partition_leaders_moved_total", Help: "Leaders of partitions that this cloudcore moved to another server of the hub.",
		}),
	}, nil
}

// Start keeps until ctx ends and then returns nil. If the recorded layout changes it returns ErrOther: this replica must not publish on.
func (k *Keeper) Start(ctx context.Context) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := k.look(ctx); errors.Is(err, ErrOther) {
			return err
		} else if err != nil && ctx.Err() == nil {
			k.log.Warn("partitions not looked at", zap.Error(err))
		}
	}
}

// look checks the layout and makes at most one move.
func (k *Keeper) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, period)
	defer cancel()
	if err := checkRecord(ctx, k.registry, k.layout); err != nil {
		return err
	}
	if err := AskServer(ctx, k.nc, k.layout); errors.Is(err, ErrOther) {
		// A server that was configured otherwise serves its own links wrongly; this replica's are right.
		k.log.Error("gateways at this server of the hub receive nothing", zap.Error(err))
	}
	if len(k.layout.DesiredStreams()) == 1 || !k.owns(BalancerName) {
		k.leaders.Reset()
		k.seen = nil
		return nil
	}
	now, err := k.read(ctx)
	if err != nil {
		k.seen = nil
		return err
	}
	k.leaders.Reset()
	count := countLeaders(now)
	for _, server := range servers(count) {
		k.leaders.WithLabelValues(server).Set(float64(count[server]))
	}
	quiet := sameLeaders(now, k.seen)
	k.seen = now
	if m, ok := nextMove(now); ok && quiet {
		return k.move(ctx, m)
	}
	return nil
}

// read reads where the copies of each partition are.
func (k *Keeper) read(ctx context.Context) ([]partition, error) {
	var all []partition
	for _, name := range k.layout.DesiredStreams() {
		ctx, cancel := context.WithTimeout(ctx, topology.StepTimeout)
		stream, err := k.js.Stream(ctx, name)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("read stream %s: %w", name, err)
		}
		p := partition{stream: name, current: true}
		if cluster := stream.CachedInfo().Cluster; cluster != nil {
			p.leader = cluster.Leader
			for _, copy := range cluster.Replicas {
				p.copies, p.current = append(p.copies, copy.Name), p.current && copy.Current && !copy.Offline
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// move asks a stream's leader to step down in favour of another server.
func (k *Keeper) move(ctx context.Context, m move) error {
	ctx, cancel := context.WithTimeout(ctx, topology.StepTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{"placement": map[string]string{"preferred": m.to}})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	msg, err := k.nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+m.stream, body)
	if err != nil {
		return fmt.Errorf("move the leader of %s: %w", m.stream, err)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &answer); err != nil {
		return fmt.Errorf("move the leader of %s: %w", m.stream, err)
	}
	if answer.Error != nil {
		return fmt.Errorf("move the leader of %s: %w", m.stream, answer.Error)
	}
	k.moved.Inc()
	k.log.Info("leader of a partition moved", zap.String("stream", m.stream), zap.String("from", m.from), zap.String("to", m.to))
	return nil
}

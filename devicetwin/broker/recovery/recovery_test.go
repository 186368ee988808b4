package recovery_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/devicetwin/broker/recovery"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

const (
	stream   = "msgs"
	consumer = "own"
	inStream = "jetstream/$G/streams/" + stream
)

// disk is the folder of a broker.
type disk struct {
	*testing.T
	dir      string
	recorded uint64
}

func streams(maxBytes int64) []jetstream.StreamConfig {
	return []jetstream.StreamConfig{{Name: stream, Subjects: []string{"m.>", recovery.SkipSubject}, Retention: jetstream.InterestPolicy, MaxBytes: maxBytes}}
}

func ownConsumer() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{Durable: consumer, FilterSubjects: []string{"m.>"}, AckPolicy: jetstream.AckExplicitPolicy}
}

// run starts a server on the folder, prepares it, and ends it after the test of what it has.
func (d *disk) run(test func(js jetstream.JetStream, own jetstream.Consumer, life string)) {
	d.Helper()
	d.start(64<<20, func(files recovery.Files, js jetstream.JetStream) {
		d.Helper()
		ctx, cancel := context.WithTimeout(d.Context(), time.Minute)
		defer cancel()
		own, life, err := files.Prepare(ctx, js, streams(-1), ownConsumer(), func(string) uint64 { return d.recorded })
		kit.Must(d, err)
		test(js, own, life)
	})
}

// start starts a server on the folder, with room for so many bytes, and ends it after the test of what it has.
func (d *disk) start(maxStore int64, test func(files recovery.Files, js jetstream.JetStream)) {
	d.Helper()
	files := recovery.Files{Dir: d.dir, Stream: stream, Consumer: consumer, Log: zaptest.NewLogger(d)}
	kit.Must(d, files.Restore())
	ns, err := server.NewServer(&server.Options{ServerName: "s", JetStream: true, StoreDir: d.dir, DontListen: true, NoSigs: true, NoLog: true, JetStreamMaxStore: maxStore})
	kit.Must(d, err)
	ns.Start()
	defer func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	}()
	if !ns.ReadyForConnections(30 * time.Second) {
		d.Fatal("the server does not start")
	}
	nc, err := nats.Connect("", nats.InProcessServer(ns))
	kit.Must(d, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	kit.Must(d, err)
	test(files, js)
}

// publish stores a message and returns its sequence.
func (d *disk) publish(js jetstream.JetStream, text string) uint64 {
	d.Helper()
	ack, err := js.Publish(d.Context(), "m.a", []byte(text))
	kit.Must(d, err)
	return ack.Sequence
}

// next checks which message the consumer delivers next, and acknowledges it.
func (d *disk) next(own jetstream.Consumer, want string) uint64 {
	d.Helper()
	m, err := own.Next(jetstream.FetchMaxWait(30 * time.Second))
	kit.Must(d, err)
	if string(m.Data()) != want {
		d.Fatalf("got %q, want %q", m.Data(), want)
	}
	kit.Must(d, m.DoubleAck(d.Context()))
	about, err := m.Metadata()
	kit.Must(d, err)
	return about.Sequence.Stream
}

func (d *disk) damage(name string, content string) {
	d.Helper()
	path := filepath.Join(d.dir, inStream, name)
	if _, err := os.Stat(path); err != nil {
		d.Fatal(err)
	}
	kit.Must(d, os.WriteFile(path, []byte(content), 0o600))
}

// Files that a power cut has damaged cost no message: those that say what a stream and its consumer are, and the consumer's state.
func TestFiles_DamageCostsNoMessage(t *testing.T) {
	for _, name := range []string{"meta.inf", "meta.sum", "obs/own/meta.inf", "obs/own/meta.sum", "obs/own/o.dat"} {
		for kind, content := range map[string]string{"empty": "", "zeros": "\x00\x00\x00\x00", "torn": "{\"na"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				d := &disk{T: t, dir: t.TempDir()}
				var life string
				d.run(func(js jetstream.JetStream, own jetstream.Consumer, l string) {
					life = l
					d.publish(js, "1")
					d.publish(js, "2")
					d.next(own, "1")
				})
				d.damage(name, content)
				d.run(func(js jetstream.JetStream, own jetstream.Consumer, l string) {
					if l != life {
						t.Errorf("another life of the stream: %s after %s", l, life)
					}
					d.publish(js, "3")
					d.next(own, "2")
					d.next(own, "3")
				})
			})
		}
	}
}

// A folder without copies, of an older version, keeps its messages when its files are damaged, and the consumer is not deaf.
func TestFiles_DamageWithoutCopies(t *testing.T) {
	d := &disk{T: t, dir: t.TempDir()}
	d.run(func(js jetstream.JetStream, own jetstream.Consumer, _ string) {
		for range 50 {
			d.publish(js, "old")
			d.next(own, "old")
		}
		d.publish(js, "1")
	})
	kit.Must(t, os.Remove(filepath.Join(d.dir, "definitions.json")))
	d.damage("meta.sum", "")
	d.run(func(js jetstream.JetStream, own jetstream.Consumer, _ string) {
		d.publish(js, "2")
		d.next(own, "1")
		d.next(own, "2")
	})
}

// A stream that has lost sequences which the gateway has recorded gives out later ones, and keeps the messages that it has.
func TestPrepare_NoSequenceTwice(t *testing.T) {
	for name, waiting := range map[string]bool{"empty": false, "with a message": true} {
		t.Run(name, func(t *testing.T) {
			d := &disk{T: t, dir: t.TempDir()}
			d.run(func(js jetstream.JetStream, own jetstream.Consumer, _ string) {
				d.publish(js, "1")
				d.next(own, "1")
				if waiting {
					d.publish(js, "2")
				}
			})
			d.recorded = 5000
			d.run(func(js jetstream.JetStream, own jetstream.Consumer, _ string) {
				if sequence := d.publish(js, "3"); sequence != 5001 {
					t.Errorf("the next message has the sequence %d, want 5001", sequence)
				}
				if waiting {
					d.next(own, "2")
				}
				d.next(own, "3")
			})
			d.run(func(js jetstream.JetStream, own jetstream.Consumer, _ string) {
				if sequence := d.publish(js, "4"); sequence != 5002 {
					t.Errorf("after another start: %d, want 5002", sequence)
				}
				d.next(own, "4")
			})
		})
	}
}

// What is left of consumers that the server could not read is removed.
func TestPrepare_RemovesStrayConsumers(t *testing.T) {
	d := &disk{T: t, dir: t.TempDir()}
	d.run(func(js jetstream.JetStream, _ jetstream.Consumer, _ string) {
		for _, name := range []string{"whole", "damaged"} {
			_, err := js.CreateConsumer(t.Context(), stream, jetstream.ConsumerConfig{Durable: name, AckPolicy: jetstream.AckExplicitPolicy})
			kit.Must(t, err)
		}
	})
	d.damage("obs/damaged/meta.inf", "")
	d.run(func(js jetstream.JetStream, _ jetstream.Consumer, _ string) {
		if _, err := js.Consumer(t.Context(), stream, "whole"); err != nil {
			t.Error(err)
		}
		if _, err := js.Consumer(t.Context(), stream, "damaged"); !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Errorf("the damaged one: %v", err)
		}
		if _, err := os.Stat(filepath.Join(d.dir, inStream, "obs/damaged")); err == nil {
			t.Error("its folder is there")
		}
	})
}

// A damaged stream that cannot be made again, as on a full disk, keeps its files for the next attempt.
func TestPrepare_KeepsFilesAfterFailure(t *testing.T) {
	d := &disk{T: t, dir: t.TempDir()}
	d.run(func(js jetstream.JetStream, _ jetstream.Consumer, _ string) { d.publish(js, "1") })
	kit.Must(t, os.Remove(filepath.Join(d.dir, "definitions.json")))
	d.damage("meta.sum", "")
	d.start(1, func(files recovery.Files, js jetstream.JetStream) { // room for one byte
		if _, _, err := files.Prepare(t.Context(), js, streams(1<<20), ownConsumer(), func(string) uint64 { return 0 }); err == nil {
			t.Fatal("the stream is made without room")
		}
	})
	d.run(func(_ jetstream.JetStream, own jetstream.Consumer, _ string) { d.next(own, "1") })
}

// A start that was interrupted while it made a damaged stream again costs no message: what it had set aside is put back, whatever it had made instead.
func TestRestore_PutsBackAfterInterruption(t *testing.T) {
	for name, made := range map[string]bool{"before anything was made": false, "in the middle of the copy": true} {
		t.Run(name, func(t *testing.T) {
			d := &disk{T: t, dir: t.TempDir()}
			d.run(func(js jetstream.JetStream, _ jetstream.Consumer, _ string) { d.publish(js, "1") })
			kit.Must(t, os.Remove(filepath.Join(d.dir, "definitions.json")))
			d.damage("meta.sum", "")
			kit.Must(t, os.MkdirAll(filepath.Join(d.dir, "damaged"), 0o700))
			kit.Must(t, os.Rename(filepath.Join(d.dir, inStream), filepath.Join(d.dir, "damaged", stream)))
			if made {
				kit.Must(t, os.MkdirAll(filepath.Join(d.dir, inStream, "msgs"), 0o700))
				kit.Must(t, os.WriteFile(filepath.Join(d.dir, inStream, "msgs", "1.blk"), nil, 0o600))
			}
			d.run(func(_ jetstream.JetStream, own jetstream.Consumer, _ string) { d.next(own, "1") })
			if entries, err := os.ReadDir(filepath.Join(d.dir, "damaged")); err != nil || len(entries) > 0 {
				t.Errorf("left: %v %v", entries, err)
			}
		})
	}
}

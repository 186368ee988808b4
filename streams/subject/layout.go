package subject

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/frond-edge/frond/api/wire"
)

// Layout divides the nodes of a hub: into cells, the accounts of their links, and the cells into partitions, the streams of their desired
// state. All nodes of a cell have one partition, so that the crossings of a cell lead to one stream and a node need not know which. The zero
// Layout has one partition.
type Layout struct {
	Cells, Partitions int
}

// MaxPartitions is more than any hub needs: each is a Raft group of its own, and 100,000 nodes need 16.
const MaxPartitions = 64

// Validate refuses a number of partitions that the cells cannot be divided into.
func (l Layout) Validate() error {
	switch {
	case l.Partitions < 0 || l.Partitions > MaxPartitions:
		return fmt.Errorf("partitions: %d, choose 1 to %d", l.Partitions, MaxPartitions)
	case l.Partitions > 1 && l.Partitions > l.Cells:
		return fmt.Errorf("partitions: %d, more than the %d cells", l.Partitions, l.Cells)
	}
	return nil
}

// String is the form in which a layout is stored and told; ParseLayout is its inverse.
func (l Layout) String() string {
	return fmt.Sprintf("%d cells, %d partitions", l.Cells, l.count())
}

var errLayout = errors.New("no layout")

// ParseLayout is the inverse of String.
func ParseLayout(text string) (l Layout, err error) {
	if _, err := fmt.Sscanf(text, "%d cells, %d partitions", &l.Cells, &l.Partitions); err != nil || l.String() != text {
		return Layout{}, fmt.Errorf("%w: %.60q", errLayout, text)
	}
	return l, nil
}

// count is the number of partitions.
func (l Layout) count() int { return max(l.Partitions, 1) }

// Partition returns the partition of a node.
func (l Layout) Partition(node string) int {
	if l.count() == 1 {
		return 0
	}
	return cellOf(node, l.Cells) % l.count()
}

// DesiredStream returns the stream that holds the desired state of a node.
func (l Layout) DesiredStream(node string) string { return partitionStream(l.Partition(node)) }

// DesiredStreams returns the streams of desired state, the one of partition 0 first.
func (l Layout) DesiredStreams() []string {
	names := make([]string, l.count())
	for i := range names {
		names[i] = partitionStream(i)
	}
	return names
}

// DesiredSubject is the subject on which a node's object is published. The stream stores it as Of(Desired, node, key), whatever its
// partition: only the streams' own subjects must differ.
func (l Layout) DesiredSubject(node string, key wire.Key) string {
	return partitionToken(l.Partition(node)) + strings.TrimPrefix(Of(Desired, node, key), string(Desired))
}

// PartitionSubjects are the subjects on which a partition's stream takes messages.
func PartitionSubjects(partition int) string { return partitionToken(partition) + ".>" }

// StoredSubjects are the subjects under which every partition's stream stores what it takes.
const StoredSubjects = string(Desired) + ".>"

const streamPrefix = "DESIRED-"

func partitionStream(partition int) string { return streamPrefix + strconv.Itoa(partition) }

// partitionToken is the first token of a partition's subjects. A hub with one partition has the names of the versions that knew no others.
func partitionToken(partition int) string {
	if partition == 0 {
		return string(Desired)
	}
	return string(Desired) + "-" + strconv.Itoa(partition)
}

// CutAck returns the part of a delivery's reply subject that follows the name of a node's consumer, on whatever partition. ok is false if
// no consumer of that node delivered it.
func CutAck(reply, node string) (where string, ok bool) {
	rest, ok := strings.CutPrefix(reply, ackPrefix+streamPrefix)
	number, rest, more := strings.Cut(rest, ".")
	where, mine := strings.CutPrefix(rest, wire.Escape(node)+".")
	_, err := strconv.ParseUint(number, 10, 16)
	if !ok || !more || !mine || err != nil {
		return "", false
	}
	return where, true
}

// The hub's servers tell a client of FrondAccount their layout: LayoutQuestion is mapped to LayoutAnswer. A server with one partition, as
// those of older versions, maps nothing, and the question comes back unchanged.
const layoutPrefix = "hub.layout."

// LayoutQuestion is the subject of a question with a token that no other question has.
func LayoutQuestion(token string) string { return layoutPrefix + token }

// ParseLayoutAnswer returns the layout that a server mapped a question to. known is false if the server has one partition and does not say
// how many cells.
func ParseLayoutAnswer(subject, token string) (l Layout, known bool, err error) {
	rest, ok := strings.CutPrefix(subject, layoutPrefix+token)
	if ok && rest == "" {
		return Layout{Partitions: 1}, false, nil
	}
	if _, err := fmt.Sscanf(rest, ".%d.%d", &l.Cells, &l.Partitions); !ok || err != nil {
		return Layout{}, false, fmt.Errorf("%w: %.60q", errLayout, subject)
	}
	return l, true, nil
}

// layoutMapping returns the mapping of FrondAccount that answers LayoutQuestion, "" for one partition.
func (l Layout) layoutMapping() string {
	if l.count() == 1 {
		return ""
	}
	return fmt.Sprintf(`%q: %q`, layoutPrefix+"*", fmt.Sprintf("%s{{wildcard(1)}}.%d.%d", layoutPrefix, l.Cells, l.count()))
}

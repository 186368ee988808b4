package sensor

import "fmt"

// Check compares numbers, in the order in which a stream has them, with what the sensor says of itself after its end: each answered number must be
// there, in order, and once unless the sensor has sent it again. The number that was on its way at the end may be there or not.
func (s Status) Check(numbers []int64) error {
	next, doubled := int64(1), int64(0)
	for i, number := range numbers {
		switch {
		case number == next:
			next++
		case number == next-1 && i > 0:
			doubled++
		default:
			return fmt.Errorf("sample %d of %d has the number %d, want %d", i+1, len(numbers), number, next)
		}
	}
	switch last := next - 1; {
	case last < s.Answered:
		return fmt.Errorf("the numbers up to %d are there, and %d were answered", last, s.Answered)
	case last > s.Answered+1:
		return fmt.Errorf("the numbers up to %d are there, and only %d were answered", last, s.Answered)
	case doubled > s.Repeated:
		return fmt.Errorf("%d numbers are there twice, and %d were sent again", doubled, s.Repeated)
	}
	return nil
}

package storeutil

import (
	"encoding/binary"
	"fmt"
)

// JoinOutputs makes one value of outputs, for stores that keep them so; nil for none.
func JoinOutputs(outputs [][]byte) []byte {
	if len(outputs) == 0 {
		return nil
	}
	size := 0
	for _, out := range outputs {
		size += binary.MaxVarintLen32 + len(out)
	}
	b := make([]byte, 0, size)
	for _, out := range outputs {
		b = append(binary.AppendUvarint(b, uint64(len(out))), out...)
	}
	return b
}

// SplitOutputs is the inverse of [JoinOutputs]. What it can't read is an error that
// matches [ErrCorrupt]. The outputs are parts of b.
func SplitOutputs(b []byte) (outputs [][]byte, err error) {
	for len(b) > 0 {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return nil, fmt.Errorf("%w: output %d is cut off", ErrCorrupt, len(outputs))
		}
		b = b[n:]
		outputs = append(outputs, b[:size:size])
		b = b[size:]
	}
	return outputs, nil
}

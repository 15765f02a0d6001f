package tunnel

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// timestampMessage is the control message with which a 64-bit kernel says when a datagram came.
func timestampMessage(at time.Time) []byte {
	b := make([]byte, unix.CmsgSpace(16))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(16)))
	binary.NativeEndian.PutUint32(b[8:], unix.SOL_SOCKET)
	binary.NativeEndian.PutUint32(b[12:], unix.SO_TIMESTAMPNS)
	data := b[unix.CmsgLen(0):]
	binary.NativeEndian.PutUint64(data, uint64(at.Unix()))
	binary.NativeEndian.PutUint64(data[8:], uint64(at.Nanosecond()))
	return b
}

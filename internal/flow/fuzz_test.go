package flow

import (
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzDecode: whatever the kernel may send, nothing panics, and what names the entry in a
// deletion is what was read.
func FuzzDecode(f *testing.F) {
	s := scope{proto: 17, from: fronts[0], reply: backs[0].Addr(), port: backs[0].Port(), pending: true}
	f.Add(append([]byte{2, 1, 0, 0}, s.filter()...))
	s.from, s.reply = fronts[3], backs[3].Addr()
	f.Add(append([]byte{10, 1, 0, 0}, s.filter()...))
	f.Add(append([]byte{2, 1, 0, 0}, attr(attr(nil, ctaTupleOrig|nested, tuple(fronts[0].Addr(), ipV4Dst, 6, protoDstPort, 80)), ctaID, be32(7))...))
	f.Add([]byte{2, 1, 0, 0, 3, 0, 1, 0})
	f.Add([]byte{2, 1, 0, 0, 8, 0, 1, 128, 3, 0, 1, 0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decode(b)
		if err != nil {
			return
		}
		again, err := decode(append([]byte{e.family, 1, 0, 0}, e.key()...))
		if err != nil {
			t.Fatalf("what names the entry can't be read: %v", err)
		}
		if again.from != e.from || !slices.Equal(again.id, e.id) || !slices.Equal(again.zone, e.zone) {
			t.Errorf("names %+v, read %+v", again, e)
		}
	})
}

// FuzzRead: a datagram of any content ends, and a request's end is told at most once for
// each message.
func FuzzRead(f *testing.F) {
	message := func(kind uint16, seq uint32, body []byte) []byte {
		b := request{kind: 0, attrs: body}.append(nil, seq)
		b = append(b[:16:16], body...)
		binary.NativeEndian.PutUint32(b, uint32(len(b)))
		binary.NativeEndian.PutUint16(b[4:], kind)
		return b
	}
	f.Add(message(2, 7, make([]byte, 20)))                                                          // an acknowledgement
	f.Add(message(2, 7, binary.NativeEndian.AppendUint32(nil, uint32(0xfffffffe))))                 // ENOENT
	f.Add(append(message(0x101, 7, []byte{2, 0, 0, 0}), message(3, 7, []byte{0, 0, 0, 0})...))      // a listing and its end
	f.Add(append(message(2, 6, []byte{0xf0, 0xff, 0xff, 0xff}), message(2, 7, make([]byte, 4))...)) // of two, the first failed
	f.Add([]byte{200, 0, 0, 0, 2, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &socket{}
		ends, entries := 0, 0
		done, err := s.read(b, 7, func(uint32, unix.Errno) error { ends++; return nil }, func([]byte) error { entries++; return nil })
		if done && (err != nil || ends == 0) {
			t.Errorf("done after %d ends, %v", ends, err)
		}
		if most := len(b)/unix.NLMSG_HDRLEN + 1; ends+entries > most {
			t.Errorf("%d messages in %d bytes", ends+entries, len(b))
		}
	})
}

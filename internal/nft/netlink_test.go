package nft

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// message is one part of an answer.
func message(typ, flags uint16, sequence uint32, data ...byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, sequence)
	b = append(binary.NativeEndian.AppendUint32(b, 0), data...)
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

func join(parts ...[]byte) (out []byte) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func TestAnswersAreTakenApart(t *testing.T) {
	code := func(e unix.Errno) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(-int32(e))) }
	for name, c := range map[string]struct {
		answer     []byte
		n          int
		torn, done bool
		err        error
	}{
		"nothing":              {nil, 0, false, false, nil},
		"two, and more follow": {join(message(100, 2, 7, 1, 2, 3), message(100, 2, 7)), 2, false, false, nil},
		"two, and the end":     {join(message(100, 2, 7, 1), message(100, 2, 7), message(unix.NLMSG_DONE, 2, 7, 0, 0, 0, 0)), 2, false, true, nil},
		"cut into":             {join(message(100, 2|unix.NLM_F_DUMP_INTR, 7), message(unix.NLMSG_DONE, 2, 7)), 1, true, true, nil},
		"no such table":        {message(unix.NLMSG_ERROR, 0, 7, code(unix.ENOENT)...), 0, false, true, unix.ENOENT},
		"failed in the middle": {join(message(100, 2, 7), message(unix.NLMSG_DONE, 2, 7, code(unix.EINTR)...)), 1, false, true, unix.EINTR},
		"to an older question": {join(message(100, 2, 6), message(unix.NLMSG_ERROR, 0, 6, code(unix.ENOENT)...), message(100, 2, 7)), 1, false, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			out, torn, done, err := appendMessages(nil, c.answer, 7)
			if len(out) != c.n || torn != c.torn || done != c.done || !errors.Is(err, c.err) {
				t.Errorf("%d messages, torn %v, done %v, %v", len(out), torn, done, err)
			}
		})
	}
	if _, _, _, err := appendMessages(nil, message(100, 2, 7, 1, 2, 3)[:17], 7); err == nil {
		t.Error("a part that was cut is taken for whole")
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(join(message(100, 2, 7, 1, 2, 3), message(unix.NLMSG_DONE, 2, 7, 0, 0, 0, 0)))
	f.Add(message(100, 2, 7, 2, 0, 0, 0, 24, 0, 3, 128, 20, 0, 1, 128, 16, 0, 1, 128, 12, 0, 1, 0, 10, 99, 0, 1, 6, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		out, _, _, _ := appendMessages(nil, b, 7)
		for _, m := range out {
			for _, e := range appendElements(nil, body(m)) {
				for _, s := range sets() {
					if i, ok := e.item(s); ok && i.key.family() != s.family {
						t.Errorf("%s: an element of the other family: %+v", s.name, i)
					}
				}
			}
			_, _ = describeSet(body(m)), describeChain(body(m))
		}
	})
}

package provider

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// shape is what the first bytes of an answer look like.
type shape int

const (
	shapeOther shape = iota
	shapeEmpty
	shapeZip
	shapeGzip
	shapeTar
	shapeHTML
	shapeXML
	shapeJSON
	shapeProfile
	shapeText
)

// sniffLen is the number of first bytes that a shape is told by.
const sniffLen = 4096

// sniff tells the shape of a body from its beginning; no name and no header is asked.
func sniff(head []byte) shape {
	switch {
	case len(head) == 0:
		return shapeEmpty
	case bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte("PK\x05\x06")):
		return shapeZip
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return shapeGzip
	case len(head) > 262 && string(head[257:262]) == "ustar":
		return shapeTar
	}
	text := bytes.ToLower(bytes.TrimSpace(bytes.TrimPrefix(head, []byte("\ufeff"))))
	switch {
	case len(text) == 0 && head[0] != 0:
		return shapeEmpty
	case bytes.HasPrefix(text, []byte("<?xml")) && !bytes.Contains(text, []byte("<html")):
		return shapeXML
	case bytes.HasPrefix(text, []byte("<")):
		return shapeHTML
	case bytes.HasPrefix(text, []byte("[interface]")), bytes.HasPrefix(text, []byte("#")) && bytes.Contains(text, []byte("[interface]")):
		return shapeProfile
	case bytes.HasPrefix(text, []byte("{")), bytes.HasPrefix(text, []byte("[")):
		return shapeJSON
	case plainText(text):
		return shapeText
	}
	return shapeOther
}

// plainText reports whether the beginning of a body is words and not data.
func plainText(b []byte) bool {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		// The last rune may have been cut.
		if r == utf8.RuneError && n == 1 && len(b) >= utf8.UTFMax || unicode.IsControl(r) && !unicode.IsSpace(r) {
			return false
		}
		b = b[n:]
	}
	return true
}

func (s shape) String() string {
	switch s {
	case shapeEmpty:
		return "empty"
	case shapeZip:
		return "a zip"
	case shapeGzip:
		return "a gzip"
	case shapeTar:
		return "a tar"
	case shapeHTML:
		return "an HTML page"
	case shapeXML:
		return "an XML document"
	case shapeJSON:
		return "a JSON document"
	case shapeProfile:
		return "a single profile"
	case shapeText:
		return "a text"
	case shapeOther:
	}
	return "data of an unknown kind"
}

// refuse says why a body of this shape is not what was wanted. what names the body:
// "the answer" or "the file".
func (s shape) refuse(what, wanted string, head []byte, quote func(string) string) error {
	switch s {
	case shapeEmpty:
		return fmt.Errorf("%s is empty", what)
	case shapeJSON:
		if msg := jsonMessage(head); msg != "" {
			return fmt.Errorf("%s is %s, not %s: %s", what, s, wanted, quote(msg))
		}
	case shapeText:
		line, _, _ := strings.Cut(strings.TrimSpace(string(head)), "\n")
		return fmt.Errorf("%s is %s, not %s: %s", what, s, wanted, shorten(quote(line), 120))
	case shapeOther, shapeZip, shapeGzip, shapeTar, shapeHTML, shapeXML, shapeProfile:
	}
	return fmt.Errorf("%s is %s, not %s", what, s, wanted)
}

// jsonMessage is the text by which a provider's JSON answer explains itself.
func jsonMessage(b []byte) string {
	var m map[string]json.RawMessage
	if json.Unmarshal(b, &m) != nil {
		return ""
	}
	for _, k := range []string{"message", "error", "detail", "error_description", "reason"} {
		var s string
		if json.Unmarshal(m[k], &s) == nil && s != "" {
			return s
		}
		if inner := jsonMessage(m[k]); inner != "" {
			return inner
		}
	}
	return ""
}

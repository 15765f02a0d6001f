package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/shunt-net/shunt/internal/edge"
)

// errNoListing says that a text holds no table of ours.
var errNoListing = errors.New("no listing of " + tableTitle)

// maxOdd bounds how many odd elements of one set are named.
const maxOdd = 5

// ParseListing reads what `nft list table inet shunt_edge` printed. Text before and after
// the table is ignored; of several tables the last one counts. drift says what of the
// static part is not as it should be, and which elements are not of ours.
func ParseListing(listing string) (edge.Table, []string, error) {
	blocks := tables(listing)
	if len(blocks) == 0 {
		return edge.Table{}, nil, errNoListing
	}
	l, err := parse(blocks[len(blocks)-1])
	if err != nil {
		return edge.Table{}, nil, err
	}
	t, drift := l.table()
	return t, append(l.drift(), drift...), nil
}

// tables cuts the listings of our table, without their first and last lines, out of a text.
func tables(text string) []string {
	const begin, end = tableTitle + " {\n", "\n}\n"
	text = strings.ReplaceAll(text, "\r\n", "\n")
	var out []string
	for {
		_, rest, ok := strings.Cut(text, begin)
		if !ok {
			return out
		}
		if strings.HasPrefix(rest, "}\n") {
			out, text = append(out, ""), rest[2:]
			continue
		}
		block, rest, ok := strings.Cut(rest, end)
		if !ok {
			return out
		}
		if i := strings.LastIndex(block, begin); i >= 0 { // the first one was only quoted
			block = block[i+len(begin):]
		}
		out, text = append(out, block), rest
	}
}

// listing is a table as nft printed it.
type listing struct {
	own     []string // the table's own properties
	objects []object
}

// object is a set, map or chain.
type object struct {
	head     string     // map target4
	props    []string   // a set's properties, or a chain's lines, in one form of each
	elements [][]string // words of each element, quoted text with a quote before it
}

// reader reads one block.
type reader struct {
	lex lexer
	tok token
}

func (r *reader) step() (ok bool) {
	r.tok, ok = r.lex.next()
	return ok
}

// line collects the tokens up to the end of a line. On the table's own level an opening
// brace ends it too (opens), further in what is between braces belongs to the line.
func (r *reader) line(top bool) (words []token, opens bool) {
	depth := 0
	for r.step() {
		switch {
		case r.tok.kind == tokenLine && (depth > 0 || len(words) == 0):
			continue
		case r.tok.kind == tokenLine:
			return words, false
		case r.tok.is("{") && top:
			return words, true
		case r.tok.is("{"):
			depth++
		case r.tok.is("}") && depth > 0:
			depth--
		case r.tok.is("}") && len(words) == 0:
			return []token{r.tok}, false
		case r.tok.is("}"): // on the line of something else, which comes first
			r.lex.rest = "}" + r.lex.rest
			return words, false
		}
		words = append(words, r.tok)
	}
	return words, false
}

// parse reads the inside of a table.
func parse(block string) (listing, error) {
	var l listing
	r := &reader{lex: lexer{rest: block}}
	for {
		words, opens := r.line(true)
		if len(words) == 0 && !opens {
			return l, nil
		}
		if !opens {
			if len(words) == 1 && words[0].is("}") {
				return l, fmt.Errorf("%s: listing: a closing brace too many", tableTitle)
			}
			l.own = append(l.own, property(words))
			continue
		}
		o := object{head: property(words)}
		if err := r.object(&o); err != nil {
			return l, err
		}
		l.objects = append(l.objects, o)
	}
}

func (r *reader) object(o *object) error {
	chain := strings.HasPrefix(o.head, "chain ")
	for {
		words, _ := r.line(false)
		switch {
		case len(words) == 0:
			return fmt.Errorf("%s: listing: %s does not end", tableTitle, o.head)
		case len(words) == 1 && words[0].is("}"):
			if !chain {
				slices.Sort(o.props)
			}
			return nil
		case !chain && len(words) > 2 && words[0].text == "elements" && words[1].is("="):
			o.elements = append(o.elements, elementWords(words[2:])...)
		case !chain && words[0].text == "size" && len(words) > 1:
			o.props = append(o.props, property(words[:2]))
		default:
			o.props = append(o.props, property(words))
		}
	}
}

// elementWords splits { a . b comment "c" : d, … } at the commas.
func elementWords(words []token) [][]string {
	var out [][]string
	var one []string
	flush := func() {
		if len(one) > 0 {
			out = append(out, one)
		}
		one = nil
	}
	for _, w := range words {
		switch {
		case w.is(",") || w.is("{") || w.is("}"):
			flush()
		case w.kind == tokenText:
			one = append(one, `"`+w.text)
		case w.text != ".":
			one = append(one, w.text)
		}
	}
	flush()
	return out
}

// property writes a line in one form: single spaces, priorities as numbers, no values of counters.
func property(words []token) string {
	var out []string
	for i := 0; i < len(words); i++ {
		w := words[i]
		switch {
		case w.kind == tokenText:
			out = append(out, `"`+w.text+`"`)
		case w.text == "counter" && i+4 < len(words) && words[i+1].text == "packets" && words[i+3].text == "bytes":
			out = append(out, w.text)
			i += 4
		case w.text == "priority" && i+1 < len(words):
			n, used := priority(words[i+1:])
			out = append(out, w.text, n)
			i += used
		default:
			out = append(out, w.text)
		}
	}
	return strings.Join(out, " ")
}

// priority turns dstnat, dstnat + 5 or -95 into a number. Which of them nft prints depends
// on its version.
func priority(words []token) (text string, used int) {
	names := map[string]int{"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100}
	base, ok := names[words[0].text]
	if !ok {
		return words[0].text, 1
	}
	if len(words) > 2 && (words[1].text == "+" || words[1].text == "-") {
		if n, err := strconv.Atoi(words[2].text); err == nil && n < 1<<31 {
			if words[1].text == "-" {
				n = -n
			}
			return strconv.Itoa(base + n), 3
		}
	}
	return strconv.Itoa(base), 1
}

// table reads the elements of our sets.
func (l listing) table() (edge.Table, []string) {
	var t edge.Table
	var drift []string
	for _, k := range kinds() {
		var list []item
		for _, s := range k.sets() {
			o := l.object(s.head())
			if o == nil {
				continue
			}
			var odd []string
			for _, words := range o.elements {
				if i, ok := parseItem(s, words); ok {
					list = append(list, i)
				} else {
					odd = append(odd, strings.Join(words, " "))
				}
			}
			drift = append(drift, oddText(s, odd)...)
		}
		drift = append(drift, oddLeases(keep(&t, k, list))...)
	}
	return t, drift
}

func (l listing) object(head string) *object {
	for i := range l.objects {
		if l.objects[i].head == head {
			return &l.objects[i]
		}
	}
	return nil
}

// oddText names elements that are not of ours.
func oddText(s set, odd []string) []string {
	var out []string
	for i, o := range odd {
		if i == maxOdd {
			return append(out, fmt.Sprintf("%s: %d more elements that are none of ours", s.head(), len(odd)-i))
		}
		if len(o) > 100 {
			o = o[:100] + "…"
		}
		out = append(out, fmt.Sprintf("%s: element %q is none of ours", s.head(), o))
	}
	return out
}

func oddLeases(odd []item) []string {
	var texts []string
	for _, i := range odd {
		texts = append(texts, i.text())
	}
	return oddText(kindLease.sets()[0], texts)
}

// parseItem reads one element of a set.
func parseItem(s set, words []string) (item, bool) {
	i := item{}
	if s.kind == kindLease {
		i.left = -1
	}
	var fields, data []string
	into := &fields
	for n := 0; n < len(words); n++ {
		arg := ""
		if n+1 < len(words) {
			arg = words[n+1]
		}
		switch words[n] {
		case "comment":
			note, quoted := strings.CutPrefix(arg, `"`)
			if !quoted {
				return i, false
			}
			i.note = note
			n++
		case "timeout", "expires":
			d, ok := parseDuration(arg)
			if !ok || s.kind != kindLease {
				return i, false
			}
			i.left = d
			n++
		case ":":
			into = &data
		default:
			*into = append(*into, words[n])
		}
	}
	if len(fields) != len(s.key) || len(data) != len(s.data) {
		return i, false
	}
	return i, parseKey(s, fields, &i.key) && (s.data == nil || parseTo(s, data, &i.to))
}

func parseKey(s set, f []string, k *key) (ok bool) {
	switch s.kind {
	case kindLease:
		n, err := strconv.ParseUint(f[0], 0, 32)
		k.mark = uint32(n)
		return err == nil
	case kindOnLink:
		if !strings.Contains(f[0], "/") {
			a, ok := parseAddr(s, f[0])
			if !ok {
				return false
			}
			k.from = netip.PrefixFrom(a, a.BitLen())
		} else if k.from, ok = parsePrefix(s, f[0]); !ok {
			return false
		}
		k.addr, ok = parseAddr(s, f[1])
		return ok
	case kindTarget, kindNode, kindService, kindBackend, kindAlways:
		k.proto = protocol(f[1])
		if k.port, ok = parsePort(f[2]); !ok || k.proto == "" {
			return false
		}
	case kindAddress:
	}
	k.addr, ok = parseAddr(s, f[0])
	return ok
}

func parseTo(s set, f []string, to *netip.AddrPort) bool {
	a, ok := parseAddr(s, f[0])
	port, ok2 := parsePort(f[1])
	*to = netip.AddrPortFrom(a, port)
	return ok && ok2
}

func parseAddr(s set, text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	return a, err == nil && a.Zone() == "" && !a.Is4In6() && a.Is4() == (s.family == 4)
}

func parsePrefix(s set, text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	return p, err == nil && p == p.Masked() && !p.Addr().Is4In6() && p.Addr().Is4() == (s.family == 4)
}

func parsePort(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil
}

// protocol is TCP or UDP by name or number, else the word as it is, so that an element of
// another one can be named and deleted.
func protocol(word string) edge.Protocol {
	switch word {
	case "6":
		return edge.TCP
	case "17":
		return edge.UDP
	}
	if !isName(word, maxName) {
		return edge.ProtocolUnknown
	}
	return edge.Protocol(word)
}

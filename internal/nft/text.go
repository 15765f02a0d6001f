package nft

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

// Text is the whole table as `nft -f` reads it and, but for the wrapping of long lists,
// prints it. What can't be in a table (see Check) is left out.
func Text(t edge.Table) string {
	t, _ = canonical(t)
	return text(t)
}

func text(t edge.Table) string {
	var b strings.Builder
	b.WriteString(tableTitle + " {\n")
	for _, k := range kinds() {
		list := items(t, k)
		for _, s := range k.sets() {
			fmt.Fprintf(&b, "\t%s {\n\t\ttype %s\n\t\tsize %d\n", s.head(), s.typeText(), k.size())
			if s.flags != "" {
				fmt.Fprintf(&b, "\t\tflags %s\n", s.flags)
			}
			lead := "\t\telements = { "
			for _, i := range list {
				if i.key.family() == s.family {
					b.WriteString(lead + i.text())
					lead = ",\n\t\t\t     "
				}
			}
			if strings.HasPrefix(lead, ",") {
				b.WriteString(" }\n")
			}
			b.WriteString("\t}\n\n")
		}
	}
	for i, c := range chains() {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype %s hook %s priority %s; policy accept;\n", c.name, c.typ, c.hook, c.prio)
		for _, r := range c.rules {
			b.WriteString("\t\t" + r + "\n")
		}
		b.WriteString("\t}\n")
	}
	return b.String() + "}\n"
}

// replacement makes a table anew in one transaction: packets meet the old one or the new
// one. The first command makes the second one valid where there is no table yet.
func replacement(table string) string {
	return "add " + tableTitle + "\ndelete " + tableTitle + "\n" + table
}

// oneLine writes a script as one line, which is one transaction of an interactive nft.
func oneLine(script string) string {
	var b strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		b.WriteString(line)
		switch line[len(line)-1] {
		case '{', ',', ';':
			b.WriteByte(' ')
		default:
			b.WriteString("; ")
		}
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// atomicWrite is how much reaches the other end of a pipe in one piece or not at all,
// whoever is killed at whatever time.
const atomicWrite = 4096 // bytes

// commands are the changes as one line of commands, which nft makes one transaction. A line
// that is longer than what is written in one piece is sent as several that end in a
// backslash: nft does nothing before it has the last one. Transports that cut elsewhere
// (ssh passes on what it has read) may still end it between two commands, so that it names
// the elements one by one and lacks one at most.
func commands(changes []change) string {
	if line := strings.Join(together(changes), "; "); len(line) < atomicWrite {
		return line
	}
	var b strings.Builder
	length := 0 // of the last line
	for i, c := range oneByOne(changes) {
		switch {
		case i == 0:
		case length+len(c)+len("; ; \\\n") > atomicWrite:
			b.WriteString("; \\\n")
			length = 0
		default:
			b.WriteString("; ")
			length += len("; ")
		}
		b.WriteString(c)
		length += len(c)
	}
	return b.String()
}

// pieces are runs of whole lines that are written in one piece where a line's length lets them.
func pieces(text string) []string {
	var out []string
	begin, end := 0, 0
	for line := range strings.Lines(text) {
		if end > begin && end+len(line)-begin > atomicWrite {
			out = append(out, text[begin:end])
			begin = end
		}
		end += len(line)
	}
	return append(out, text[begin:end])
}

func together(changes []change) []string {
	var out []string
	for _, c := range changes {
		for _, s := range c.kind.sets() {
			for _, half := range []struct {
				verb string
				list []item
			}{{"delete", c.del}, {"add", c.add}} {
				var elements []string
				for _, i := range half.list {
					if i.key.family() != s.family {
						continue
					}
					if half.verb == "delete" {
						i = item{key: i.key}
					}
					elements = append(elements, i.text())
				}
				if len(elements) > 0 {
					out = append(out, element(half.verb, s.name, strings.Join(elements, ", ")))
				}
			}
		}
	}
	return out
}

func oneByOne(changes []change) []string {
	var out []string
	for _, c := range changes {
		added := map[key]item{}
		for _, i := range c.add {
			added[i.key] = i
		}
		for _, i := range c.del {
			name := c.kind.in(i.key.family())
			out = append(out, element("delete", name, i.key.text()))
			if to, ok := added[i.key]; ok {
				out = append(out, element("add", name, to.text()))
				delete(added, i.key)
			}
		}
		for _, i := range c.add {
			if _, ok := added[i.key]; ok {
				out = append(out, element("add", c.kind.in(i.key.family()), i.text()))
			}
		}
	}
	return out
}

func element(verb, set, elements string) string {
	return fmt.Sprintf("%s element inet %s %s { %s }", verb, tableName, set, elements)
}

// text is the element as nft prints it.
func (i item) text() string {
	s := i.key.text()
	if i.left > 0 {
		s += " timeout " + durationText(i.left)
	}
	if i.note != "" {
		s += ` comment "` + i.note + `"`
	}
	if i.to.IsValid() {
		s += fmt.Sprintf(" : %s . %d", i.to.Addr(), i.to.Port())
	}
	return s
}

func (k key) text() string {
	switch {
	case k.from.IsValid():
		return prefixText(k.from) + " . " + k.addr.String()
	case k.proto != "":
		return k.addr.String() + " . " + string(k.proto) + " . " + strconv.Itoa(int(k.port))
	case k.addr.IsValid():
		return k.addr.String()
	default:
		return fmt.Sprintf("0x%08x", k.mark)
	}
}

// prefixText is a prefix as nft prints it in a list.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// durationText is a time as nft prints it: 1m3s500ms.
func durationText(d time.Duration) string {
	if d < time.Millisecond {
		return "0s"
	}
	var b strings.Builder
	for _, u := range units() {
		if n := d / u.length; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			d -= n * u.length
		}
	}
	return b.String()
}

type unit struct {
	name   string
	length time.Duration
}

func units() []unit {
	return []unit{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}}
}

// parseDuration reads what durationText writes.
func parseDuration(s string) (time.Duration, bool) {
	var d time.Duration
	ok := false
	for _, u := range units() {
		digits := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
		if digits <= 0 || digits > 9 {
			continue
		}
		rest, found := strings.CutPrefix(s[digits:], u.name)
		if !found || u.name == "m" && strings.HasPrefix(rest, "s") {
			continue
		}
		n, err := strconv.Atoi(s[:digits])
		if err != nil || time.Duration(n) > (1<<62)/u.length {
			return 0, false
		}
		d += time.Duration(n) * u.length
		if d < 0 {
			return 0, false
		}
		s, ok = rest, true
	}
	return d, ok && s == ""
}

package lane

import (
	"fmt"
	"strings"

	"github.com/shunt-net/shunt/internal/egress"
)

// The shipped templates of driver commands.
const (
	TemplateWGQuick  = "wg-quick"
	TemplateAWGQuick = "awg-quick"
	TemplateIfupdown = "ifupdown"
)

// commands are a lane's own commands over those of its template.
type commands struct {
	egress.Commands
	stripped bool // the installed file is for `wg setconf`: no addresses, and they are not the file's business
}

// template returns the commands of a shipped template; the empty name has none.
//
// Neither apply stops a running lane: syncconf changes the device under the interface.
// ifupdown's stanza reads the installed file by `pre-up wg setconf`, which refuses
// Address, DNS and MTU: they stand in /etc/network/interfaces.
func template(name string) (commands, error) {
	const installed = "/etc/wireguard/{interface}.conf"
	sync := []string{"wg", "syncconf", "{interface}", "{stripped}"}
	switch name {
	case "":
		return commands{}, nil
	case TemplateWGQuick:
		return commands{Commands: egress.Commands{
			Template: name, Installed: installed, Apply: sync,
			Up: []string{"wg-quick", "up", "{interface}"}, Down: []string{"wg-quick", "down", "{interface}"},
		}}, nil
	case TemplateAWGQuick:
		return commands{Commands: egress.Commands{
			Template: name, Installed: "/etc/amnezia/amneziawg/{interface}.conf", Apply: []string{"awg", "syncconf", "{interface}", "{stripped}"},
			Up: []string{"awg-quick", "up", "{interface}"}, Down: []string{"awg-quick", "down", "{interface}"},
		}}, nil
	case TemplateIfupdown:
		return commands{stripped: true, Commands: egress.Commands{
			Template: name, Installed: installed, Apply: sync,
			Up: []string{"ifup", "{interface}"}, Down: []string{"ifdown", "{interface}"},
		}}, nil
	}
	return commands{}, fmt.Errorf("unknown template %q, want %s, %s or %s", name, TemplateAWGQuick, TemplateIfupdown, TemplateWGQuick)
}

// Resolve returns the commands of a lane: its own, and those of its template where it
// has none. Placeholders are not replaced, but for those of Installed. It is an error when
// nothing could change the lane, or when a command needs a file that is not configured.
func Resolve(l egress.Lane) (egress.Commands, error) {
	c, err := resolve(l)
	return c.Commands, err
}

func resolve(l egress.Lane) (commands, error) {
	c, err := template(l.Commands.Template)
	if err != nil {
		return c, err
	}
	own := l.Commands
	if own.Installed != "" {
		c.Installed = own.Installed
	}
	for _, f := range []struct{ to, from *[]string }{{&c.Up, &own.Up}, {&c.Down, &own.Down}, {&c.Apply, &own.Apply}} {
		if len(*f.from) > 0 {
			*f.to = *f.from
		}
	}
	c.Timeout = own.Timeout
	c.Installed = strings.NewReplacer("{interface}", l.Interface, "{lane}", l.Name).Replace(c.Installed)
	if len(c.Apply) == 0 && (len(c.Up) == 0 || len(c.Down) == 0) {
		return c, fmt.Errorf("commands: want apply, or both up and down")
	}
	for _, argv := range [][]string{c.Up, c.Down, c.Apply} {
		if c.Installed == "" && strings.Contains(strings.Join(argv, "\n"), "{installed}") {
			return c, fmt.Errorf("commands: {installed} is used and installed is not set")
		}
	}
	return c, nil
}

// usesStripped says whether argv reads the stripped file.
func usesStripped(argv []string) bool {
	return strings.Contains(strings.Join(argv, "\n"), "{stripped}")
}

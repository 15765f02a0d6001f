// Package peer runs the programs that the edge is measured beside: HAProxy, nginx,
// keepalived and a shell loop, each as Debian has it, once as it comes and once tuned as
// far as it goes.
package peer

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

//go:embed conf
var conf embed.FS

// Setting is one program in one setting.
type Setting struct {
	Name    string // haproxy-tuned
	Program string // to be found in PATH
	// Fresh says that the program is started anew before each death: it would go on with
	// the backup, or take long to come back to the first server.
	Fresh bool
	// Slow says that clients of a dead host wait for about a minute.
	Slow bool
	// Backend says that the address is the backends' own and not the holder's.
	Backend bool
	start   func(p *Peer, ctx context.Context) error
}

// Text is the setting's configuration as it is kept, with the places that a world fills in.
func (s Setting) Text() (string, error) {
	b, err := conf.ReadFile("conf/" + s.file())
	return strings.TrimSpace(string(b)), err
}

// file is the configuration's name in conf.
func (s Setting) file() string {
	switch s.Program {
	case "haproxy":
		return s.Name + ".cfg"
	case "nc":
		return "loop.sh"
	}
	return s.Name + ".conf"
}

// Version is what the program says of its version, "" where it says nothing.
func (s Setting) Version(ctx context.Context) string {
	if s.Program == "nc" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, s.Program, "-v").CombinedOutput() //nolint:gosec // one of Settings
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}

// Settings are all peers.
func Settings() []Setting {
	return []Setting{
		{Name: "haproxy-default", Program: "haproxy", start: (*Peer).haproxy},
		{Name: "haproxy-observe", Program: "haproxy", start: (*Peer).haproxy},
		{Name: "haproxy-tuned", Program: "haproxy", start: (*Peer).haproxy},
		{Name: "nginx-default", Program: "nginx", Fresh: true, Slow: true, start: (*Peer).nginx},
		{Name: "nginx-tuned", Program: "nginx", Fresh: true, start: (*Peer).nginx},
		{Name: "keepalived-default", Program: "keepalived", Backend: true, start: (*Peer).keepalived},
		{Name: "keepalived-tuned", Program: "keepalived", Backend: true, start: (*Peer).keepalivedOutside},
		{Name: "shell-loop", Program: "nc", Fresh: true, start: (*Peer).loop},
	}
}

// Address4 is the address that keepalived moves between the backends.
const Address4 = "10.20.0.100"

// modules is where Debian's nginx has its modules.
const modules = "/usr/lib/nginx/modules"

// ErrMissing says that a program is not installed.
var ErrMissing = errors.New("is not installed")

// Peer is a setting in a world.
type Peer struct {
	Setting
	w        *edgeworld.World
	dir      string
	machines []*lab.Machine
	outside  func(log string, argv []string) (stop func(), err error)
	stops    []func()
}

// Options are what a peer needs.
type Options struct {
	World *edgeworld.World
	// Outside runs a program in the machine's own namespaces, where the kernel tells of
	// ending processes, with the world's network namespaces at hand by name; nil = cannot.
	Outside func(log string, argv []string) (stop func(), err error)
}

// New prepares a peer: its folder and its programs.
func New(s Setting, o Options) (*Peer, error) {
	if _, err := exec.LookPath(s.Program); err != nil {
		return nil, fmt.Errorf("%s: %s %w", s.Name, s.Program, ErrMissing)
	}
	if _, err := os.Stat(modules + "/ngx_stream_module.so"); s.Program == "nginx" && err != nil {
		return nil, fmt.Errorf("%s: nginx's stream module %w", s.Name, ErrMissing)
	}
	p := &Peer{Setting: s, w: o.World, dir: filepath.Join(o.World.Dir, s.Name), outside: o.Outside}
	return p, os.MkdirAll(p.dir, 0o755) //nolint:gosec // nginx's workers are nobody
}

// Target is the address that clients ask.
func (p *Peer) Target() netip.AddrPort {
	if p.Backend {
		return netip.AddrPortFrom(netip.MustParseAddr(Address4), edgeworld.Port)
	}
	return p.w.VIP(4)
}

// Start starts the program.
func (p *Peer) Start(ctx context.Context) error {
	if err := p.start(p, ctx); err != nil {
		p.Stop()
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}

// Stop ends the program, and what it has left in the holder's tables.
func (p *Peer) Stop() {
	for _, stop := range p.stops {
		stop()
	}
	for _, m := range p.machines {
		m.StopAll()
	}
	p.stops, p.machines = nil, nil
}

// machine is a namespace for the program's processes, that lasts until Stop.
func (p *Peer) machine(ns *cage.Namespace) *lab.Machine {
	m := &lab.Machine{NS: ns, Dir: p.dir, Logs: p.w.Logs, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}}
	p.machines = append(p.machines, m)
	return m
}

// spawn starts a program of PATH, and fails where it ends at once.
func (p *Peer) spawn(ctx context.Context, ns *cage.Namespace, name string, argv ...string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	x, err := p.machine(ns).Spawn(name, path, argv[1:]...)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-x.Done():
		return fmt.Errorf("it ended: %s", strings.TrimSpace(x.Tail()))
	case <-time.After(300 * time.Millisecond): // it reads its configuration
		return nil
	}
}

// write fills a template of conf and returns the file's path.
func (p *Peer) write(name string, more map[string]any) (string, error) {
	t, err := template.ParseFS(conf, "conf/"+name)
	if err != nil {
		return "", err
	}
	a, b := p.w.Backend("a"), p.w.Backend("b")
	v := map[string]any{
		"VIP": p.w.VIP(4), "VIPAddr": p.w.VIP(4).Addr(), "A": a.Addr(4), "AAddr": a.Addr4, "B": b.Addr(4), "Port": edgeworld.Port,
		"Dir": p.dir, "Modules": modules, "Address": Address4, "Interface": edgeworld.BackInterface,
	}
	path := filepath.Join(p.dir, name)
	for k, x := range more {
		v[k] = x
		if k == "Name" {
			path = filepath.Join(p.dir, fmt.Sprint(x)+"-"+name)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644) //nolint:gosec // no secret; keepalived wants it not executable
	if err != nil {
		return "", err
	}
	return path, errors.Join(t.Execute(f, v), f.Close())
}

// holder is the namespace of the replica that has the address.
func (p *Peer) holder() *cage.Namespace { return p.w.Replicas[0].NS }

func (p *Peer) haproxy(ctx context.Context) error {
	path, err := p.write(p.file(), nil)
	if err != nil {
		return err
	}
	return p.spawn(ctx, p.holder(), p.Name, "haproxy", "-db", "-f", path)
}

func (p *Peer) nginx(ctx context.Context) error {
	path, err := p.write(p.file(), nil)
	if err != nil {
		return err
	}
	return p.spawn(ctx, p.holder(), p.Name, "nginx", "-c", path, "-g", "daemon off;")
}

func (p *Peer) loop(ctx context.Context) error {
	path, err := p.write(p.file(), nil)
	if err != nil {
		return err
	}
	p.stops = append(p.stops, func() {
		cmd := exec.Command("nft", "delete", "table", "ip", "loop") //nolint:noctx // quick, and after the run's end too
		if err := p.holder().Start(cmd); err == nil {
			_ = cmd.Wait() // it may not be there
		}
	})
	return p.spawn(ctx, p.holder(), p.Name, "bash", path)
}

// instance fills keepalived's configuration of one backend.
func (p *Peer) instance(b *edgeworld.Backend) (string, error) {
	nc, err := exec.LookPath("nc")
	if err != nil {
		return "", fmt.Errorf("nc %w", ErrMissing)
	}
	v := map[string]any{"Name": b.Name, "Role": "BACKUP", "Priority": 100, "Process": b.Process(), "NC": nc}
	if b.Name == "a" {
		v["Role"], v["Priority"] = "MASTER", 150
	}
	return p.write(p.file(), v)
}

// pidFiles are keepalived's arguments for files of its own.
func (p *Peer) pidFiles(b *edgeworld.Backend) []string {
	return []string{"-p", filepath.Join(p.dir, b.Name+".pid"), "-r", filepath.Join(p.dir, b.Name+".vrrp.pid")}
}

func (p *Peer) keepalived(ctx context.Context) error {
	for _, b := range p.w.Backends[:2] {
		path, err := p.instance(b)
		if err != nil {
			return err
		}
		argv := append([]string{"keepalived", "-n", "-l", "-P", "-f", path}, p.pidFiles(b)...)
		if err := p.spawn(ctx, b.NS, p.Name+"-"+b.Name, argv...); err != nil {
			return err
		}
	}
	return nil
}

// asNice begins a command that has this process's priority, as all have that are started
// inside.
func asNice() []string {
	prio, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return nil
	}
	return []string{"sh", "-ec", fmt.Sprintf(`renice -n %d -p $$ >/dev/null; exec "$@"`, 20-prio), "sh"}
}

// ErrOutside says that a program can only run in the machine's own namespaces.
var ErrOutside = errors.New("runs only in the machine's first namespaces: the kernel tells of ending processes nowhere else")

func (p *Peer) keepalivedOutside(context.Context) error {
	if p.outside == nil {
		return ErrOutside
	}
	for _, b := range p.w.Backends[:2] {
		path, err := p.instance(b)
		if err != nil {
			return err
		}
		argv := slices.Concat(asNice(), []string{"keepalived", "-n", "-l", "-P", "-s", b.NS.Name, "-f", path}, p.pidFiles(b))
		stop, err := p.outside(filepath.Join(p.w.Logs, p.Name+"-"+b.Name+".log"), argv)
		if err != nil {
			return err
		}
		p.stops = append(p.stops, stop)
	}
	return nil
}

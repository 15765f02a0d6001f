package strategy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"

	"github.com/shunt-net/shunt/internal/dial"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/run"
)

// maxAnswer bounds what an executable may say, in bytes.
const maxAnswer = 64 << 10

// file is a strategy of the folder.
type file struct {
	name, path string
	off        bool   // it turns the built-in one of that name off
	reason     string // why it is not run
}

// folder lists the strategies of the folder; a folder that is not there holds none. An
// error means that nothing in it may be trusted.
func (s *Strategies) folder() ([]file, error) {
	dir := s.o.Config.Dir
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("strategies: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("strategies: %s is no folder", dir)
	}
	if reason := trusted(info); reason != "" {
		return nil, fmt.Errorf("strategies: folder %s %s", dir, reason)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("strategies: %w", err)
	}
	// As with run-parts: what a package manager or an editor leaves behind is none.
	proper := regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]*$`)
	var out []file
	for _, e := range list {
		if proper.MatchString(e.Name()) {
			out = append(out, look(e.Name(), filepath.Join(dir, e.Name())))
		}
	}
	return out, nil
}

// look judges one file, following links: it is the file at the end that is run.
func look(name, path string) file {
	f := file{name: name, path: path}
	if to, err := os.Readlink(path); err == nil && to == os.DevNull {
		f.off = true
		return f
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		f.reason = err.Error()
	case !info.Mode().IsRegular():
		f.reason = "refused: not a file"
	case trusted(info) != "":
		f.reason = "refused: it " + trusted(info)
	case info.Size() == 0:
		f.off = true
	case info.Mode()&0o111 == 0:
		f.reason = "refused: it is not executable"
	}
	return f
}

// trusted returns why somebody else than root, or whom we run as, could have written it;
// "" = nobody could.
func trusted(info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "has an unknown owner"
	}
	uid := st.Uid
	switch {
	case uid != 0 && int(uid) != os.Geteuid():
		return fmt.Sprintf("belongs to user %d, not to root", uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Sprintf("may be written by others (mode %04o)", info.Mode().Perm())
	}
	return ""
}

// answer is what an executable says on stdout.
type answer struct {
	Success   *bool  `json:"success"`
	Strategy  string `json:"recovery_strategy"` // not used: the file's name counts
	Interface string `json:"recovery_iface"`
	Proxy     string `json:"proxy"`
	AccessOK  *bool  `json:"hmn_access_ok"`
	Reason    string `json:"reason"`
}

// executable asks a file of the folder, and proves what it says.
func (s *Strategies) executable(ctx context.Context, path string, in egress.RecoveryInput) (access, error) {
	question, err := json.Marshal(in)
	if err != nil {
		return access{}, err
	}
	res, err := run.Command(ctx, []string{path}, run.Options{
		Stdin: bytes.NewReader(append(question, '\n')), Timeout: s.o.Config.Timeout, MaxOutput: maxAnswer, Dir: "/",
	})
	if err != nil {
		return access{}, err
	}
	if res.Truncated {
		return access{}, fmt.Errorf("it said more than %d bytes", maxAnswer)
	}
	a, err := parse(res.Stdout)
	if err != nil {
		return access{}, err
	}
	way, err := s.way(a)
	if err != nil {
		return access{}, err
	}
	if err := s.prove(ctx, way); err != nil {
		return access{}, fmt.Errorf("it says that it has access, and has none: %w", err)
	}
	detail := "by " + a.Interface
	if a.Proxy != "" {
		detail = "by a proxy"
	}
	return access{way: way, iface: a.Interface, proxy: shown(a.Proxy), detail: detail}, nil
}

// parse reads one JSON object and nothing else.
func parse(b []byte) (answer, error) {
	var a answer
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&a); err != nil {
		return answer{}, fmt.Errorf("it did not answer with a JSON object: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return answer{}, errors.New("it answered with more than one JSON object")
	}
	switch {
	case a.Success == nil || a.AccessOK == nil:
		return answer{}, errors.New("its answer lacks success or hmn_access_ok")
	case !*a.Success || !*a.AccessOK:
		if a.Reason != "" {
			return answer{}, fmt.Errorf("it has no access: %.200q", a.Reason)
		}
		return answer{}, errors.New("it has no access")
	case a.Interface == "" && a.Proxy == "":
		return answer{}, errors.New("it names neither recovery_iface nor proxy")
	}
	return a, nil
}

// way makes the way that an answer names.
func (s *Strategies) way(a answer) (dial.Func, error) {
	o := dial.Options{Interface: a.Interface}
	if a.Interface != "" {
		if slices.Contains(s.o.Lanes, a.Interface) {
			return nil, fmt.Errorf("recovery_iface %s is a lane: it carries users", a.Interface)
		}
		i, err := net.InterfaceByName(a.Interface)
		switch {
		case err != nil:
			return nil, fmt.Errorf("recovery_iface %.40q does not exist", a.Interface)
		case i.Flags&net.FlagUp == 0:
			return nil, fmt.Errorf("recovery_iface %s is down", a.Interface)
		case i.Flags&net.FlagLoopback != 0:
			return nil, fmt.Errorf("recovery_iface %s leads nowhere", a.Interface)
		}
		if a.Interface != s.o.Uplink {
			o.Resolvers = s.o.Config.Resolvers
		}
	}
	way := dial.New(o)
	if a.Proxy == "" {
		return way, nil
	}
	return dial.Proxy(a.Proxy, way)
}

// shown is a proxy without its password.
func shown(proxy string) string {
	u, err := url.Parse(proxy)
	if err != nil {
		return ""
	}
	return u.Redacted()
}

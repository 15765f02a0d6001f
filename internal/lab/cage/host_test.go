package cage_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// members are the processes whose environment names the test.
func members(temp string) []string {
	var out []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		env, _ := os.ReadFile(d + "/environ")
		if bytes.Contains(env, []byte(inside+"="+temp)) {
			out = append(out, d)
		}
	}
	return out
}

// pidOne is the host's number of the cage's pid 1.
func pidOne(t *testing.T, temp string) int {
	t.Helper()
	for _, d := range members(temp) {
		b, _ := os.ReadFile(d + "/status")
		for l := range strings.Lines(string(b)) {
			var outer, inner int
			if n, _ := fmt.Sscanf(l, "NSpid: %d %d", &outer, &inner); n == 2 && inner == 1 {
				return outer
			}
		}
	}
	t.Fatal("pid 1 of the cage was not found")
	return 0
}

// leftovers is what of a cage can still be seen on the host.
func leftovers(temp string, spaces []string) []string {
	var out []string
	for _, p := range members(temp) {
		cmd, _ := os.ReadFile(p + "/cmdline")
		out = append(out, fmt.Sprintf("process %s %q", p, cmd))
	}
	files, _ := filepath.Glob(temp + "/*")
	for _, f := range files {
		out = append(out, "file "+f)
	}
	links, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/net")
	for _, l := range links {
		if id, _ := os.Readlink(l); slices.Contains(spaces, id) {
			out = append(out, "namespace "+id+" of "+l)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for l := range strings.Lines(string(mounts)) {
		for _, id := range spaces {
			if strings.Contains(l, id) || strings.Contains(l, temp) {
				out = append(out, "mount "+l)
			}
		}
	}
	for _, f := range []string{"/run/wireguard/litter.sock", "/run/netns/one", "/run/netns/two"} {
		if _, err := os.Lstat(f); err == nil {
			out = append(out, "file "+f)
		}
	}
	return out
}

// host is what of the host's own network a cage must not change.
type host struct {
	links, sysctl string
}

func lookAtHost(t *testing.T) host {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var h host
	for _, i := range all {
		h.links += fmt.Sprintf("%d %s %s\n", i.Index, i.Name, i.Flags)
	}
	for _, s := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/conf/all/rp_filter", "/proc/sys/kernel/hostname"} {
		b, _ := os.ReadFile(s)
		h.sysctl += s + " " + string(b)
	}
	return h
}

func (h host) compare(t *testing.T) {
	t.Helper()
	if now := lookAtHost(t); now != h {
		t.Errorf("the host's own network changed:\nwas %+v\nnow %+v", h, now)
	}
}

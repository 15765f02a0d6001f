package plane

import (
	"bufio"
	"os/exec"
	"strings"
	"sync"
)

// watch records every change event of nftables, rules and routes in the router, as nft and
// ip print them; the function that it returns stops that and gives them.
func (w *world) watch() func() []string {
	w.tb.Helper()
	var mu sync.Mutex
	var events []string
	var stops []func()
	start := func(ready string, argv ...string) {
		cmd := exec.Command(argv[0], argv[1:]...)
		out, err := cmd.StdoutPipe()
		must(w.tb, err)
		must(w.tb, cmd.Start())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for sc := bufio.NewScanner(out); sc.Scan(); {
				mu.Lock()
				events = append(events, strings.TrimSpace(sc.Text()))
				mu.Unlock()
			}
		}()
		stops = append(stops, func() { _ = cmd.Process.Kill(); <-done; _ = cmd.Wait() })
		_ = ready
	}
	start("", "nft", "monitor")
	start("", "ip", "monitor", "route", "rule")
	// A mark of our own shows that both are listening, and later that they have read all.
	seen := func(mark string) bool {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, e := range events {
			if strings.Contains(e, mark) {
				n++
			}
		}
		return n >= 2
	}
	sign := func(mark, table string) {
		eventually(w.tb, "monitors that listen", func() bool {
			w.nft("add table ip " + mark)
			w.nft("delete table ip " + mark)
			w.ip("route add blackhole 192.0.2.99 table " + table)
			w.ip("route del blackhole 192.0.2.99 table " + table)
			return seen(mark) && seen("table "+table)
		})
	}
	sign("watch_begin", "9901")
	return func() []string {
		w.tb.Helper()
		sign("watch_end", "9902")
		for _, stop := range stops {
			stop()
		}
		var out []string
		for _, e := range events {
			if !strings.Contains(e, "watch_") && !strings.Contains(e, "table 990") && !strings.HasPrefix(e, "# new generation") && e != "" {
				out = append(out, e)
			}
		}
		return out
	}
}

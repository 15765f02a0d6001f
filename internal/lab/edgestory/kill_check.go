package edgestory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

// held says whether the drain's record was written.
func (k *killing) held() bool {
	b, err := os.ReadFile(filepath.Join(k.r.State, "edge-holds.json"))
	return err == nil && strings.Contains(string(b), `"a"`)
}

// forgetAnswers is time passing for the record of who answered when: what was asked a moment
// ago is asked again. A record that is missing, or torn, has nothing to forget.
func (k *killing) forgetAnswers() error {
	file := filepath.Join(k.r.State, "edge.json")
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) || err == nil && !json.Valid(b) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(file, asked.ReplaceAll(b, []byte(`"asked": 1`)), 0o640) //nolint:gosec // as it was
}

var asked = regexp.MustCompile(`"asked":\s*\d+`)

// faults are what is not as it should be when no run is under way.
func (k *killing) faults(ctx context.Context, want string) []string {
	st, code, err := look(ctx, k.r)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	if code != 0 {
		out = append(out, fmt.Sprintf("status exits %d", code))
	}
	if got, _ := st.target(); want != "" && got != want {
		out = append(out, fmt.Sprintf("the service leads to %q, want %q", got, want))
	}
	for _, r := range k.w.Replicas {
		out = append(out, k.led(r, want)...)
		out = append(out, k.strangers(ctx, r)...)
	}
	return append(out, damaged(k.r.State)...)
}

// led is where a table leads, as far as it should not.
func (k *killing) led(r *edgeworld.Replica, want string) []string {
	a := leads(r.NS)
	if !slices.ContainsFunc(k.w.Backends, func(b *edgeworld.Backend) bool { return b.Addr4 == a && (want == "" || b.Name == want) }) {
		return []string{fmt.Sprintf("the table of %s leads to %s", r.Name, a)}
	}
	return nil
}

// strangers are addresses in a table that nothing in the configuration has: elements that a
// run has left behind.
func (k *killing) strangers(ctx context.Context, r *edgeworld.Replica) []string {
	text, err := listing(ctx, r)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, a := range addresses(text) {
		if !k.w.Knows(a) {
			out = append(out, fmt.Sprintf("the table of %s has %s", r.Name, a))
		}
	}
	return out
}

var addressLike = regexp.MustCompile(`[0-9a-f.:]*(?:\.[0-9]+\.|:[0-9a-f]*:)[0-9a-f.:]*`)

// addresses are all addresses in a listing.
func addresses(listing string) []netip.Addr {
	var out []netip.Addr
	for _, w := range addressLike.FindAllString(listing, -1) {
		if a, err := netip.ParseAddr(w); err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// listing is a replica's table as nft tells it.
func listing(ctx context.Context, r *edgeworld.Replica) (string, error) {
	out, err := command(ctx, r.NS, "", "nft", "list", "table", "inet", "shunt_edge")
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.Name, err)
	}
	return out, nil
}

// damaged are the files of a state folder that cannot be read as what they are, and what a
// write has left behind.
func damaged(dir string) []string {
	var out []string
	list, err := os.ReadDir(dir)
	if err != nil {
		return []string{err.Error()}
	}
	for _, f := range list {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		switch {
		case err != nil || strings.HasSuffix(f.Name(), ".lock"):
		case strings.HasSuffix(f.Name(), ".json"):
			if !json.Valid(b) {
				out = append(out, f.Name()+" is no JSON")
			}
		case strings.HasSuffix(f.Name(), ".jsonl"):
			for i, line := range bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n")) {
				if len(line) > 0 && !json.Valid(line) {
					out = append(out, fmt.Sprintf("line %d of %s is no JSON: %.60q", i+1, f.Name(), line))
				}
			}
		}
	}
	return out
}

// planted proves that faults are found, and that they are mended.
func (k *killing) planted(ctx context.Context) error {
	if err := k.begin(ctx, calmly()); err != nil {
		return err
	}
	if f := k.faults(ctx, "a"); len(f) > 0 {
		k.Problem("without any fault: %s", strings.Join(f, "; "))
	}
	orphan := fmt.Sprintf("add element inet shunt_edge target4 { %s . tcp . 99 : 10.20.0.99 . 80 }", edgeworld.VIP4)
	plants := map[string]func() error{
		"a replica without a table":    func() error { deleteTable(k.w.Replicas[1]); return nil },
		"a replica that leads to b":    func() error { return lead(ctx, k.w.Replicas[1], k.w.Backend("b")) },
		"the holder's that leads to b": func() error { return lead(ctx, k.r, k.w.Backend("b")) },
		"an element too many": func() error {
			_, err := command(ctx, k.w.Replicas[1].NS, "", "nft", orphan)
			return err
		},
		"a torn record": func() error {
			return os.WriteFile(filepath.Join(k.r.State, "edge-planted.json"), []byte(`{"torn":`), 0o600)
		},
	}
	found := 0
	for what, plant := range plants {
		if err := plant(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if len(k.faults(ctx, "a")) > 0 {
			found++
		} else {
			k.Problem("%s is not found", what)
		}
		_ = os.Remove(filepath.Join(k.r.State, "edge-planted.json"))
		k.r.Shunt(ctx, "edge", "retarget")
		k.r.Shunt(ctx, "edge", "reset", "front") // a change by hand is an operator's word, until the next one
		if f := k.faults(ctx, "a"); len(f) > 0 {
			k.Problem("%s is not mended: %s", what, strings.Join(f, "; "))
		}
	}
	k.Control("planted_faults_found", float64(found), found == len(plants))
	return nil
}

// command runs a program in a namespace to its end.
func command(ctx context.Context, ns *cage.Namespace, stdin string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the lab's own words
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := ns.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.String(), nil
}

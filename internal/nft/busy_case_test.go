package nft

import "testing"

// Case: the kernel refuses to delete a chain, a map or a set that something else still refers to.
// Whatever somebody has tied to our table, the next apply goes through at once, in one
// transaction, and nothing of it is left.
func TestWhatIsTiedToOurTableKeepsNothingUp(t *testing.T) {
	ties := map[string]string{
		"a chain that ours jumps to":             "add chain inet shunt_edge theirs; add rule inet shunt_edge prerouting jump theirs",
		"a chain that elements of a map lead to": "add chain inet shunt_edge theirs; add map inet shunt_edge doors { type inet_service : verdict; }; add element inet shunt_edge doors { 80 : jump theirs }; add rule inet shunt_edge forward tcp dport vmap @doors",
		"chains that jump to each other's chain": "add chain inet shunt_edge x; add chain inet shunt_edge y; add chain inet shunt_edge z; add rule inet shunt_edge x jump z; add rule inet shunt_edge y jump z; add rule inet shunt_edge output jump x",
		"a rule of theirs that reads our sets":   "add chain inet shunt_edge theirs { type filter hook input priority 50; }; add rule inet shunt_edge theirs ip daddr . meta l4proto . th dport @service4 counter; add rule inet shunt_edge theirs ip saddr . ip daddr @onlink4 counter",
	}
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			r := door(s)
			apply(t, r, full())
			for tie, script := range ties {
				for _, want := range []int{0, 1} { // the same table, and another one
					table := full()
					if want == 1 {
						table = led(two4, two6, 9)
					}
					s.nft(script + "\n")
					v := observe(t, r)
					if v.Drift == nil {
						t.Errorf("%s: not noticed", tie)
					}
					before := s.generation()
					v, err := r.Apply(t.Context(), v, table)
					if err != nil {
						t.Fatalf("%s: %v", tie, err)
					}
					clean(t, v, table)
					if n := s.generation() - before; n != 1 {
						t.Errorf("%s: %d transactions", tie, n)
					}
					s.reloads(t, table)
				}
			}
		})
	}
}

package egress

import "maps"

// clone is a deep copy: plans never change their input.
func (m Memory) clone() Memory {
	c := m
	c.Lanes = cloneMap(m.Lanes)
	c.Lends = cloneMap(m.Lends)
	c.Holds = cloneMap(m.Holds)
	c.Failures = cloneMap(m.Failures)
	c.Modes = m.Modes.clone()
	c.PoolSeqs = cloneMap(m.PoolSeqs)
	return c
}

func cloneMap[K comparable, V any](m map[K]V) map[K]V {
	c := make(map[K]V, len(m))
	maps.Copy(c, m)
	return c
}

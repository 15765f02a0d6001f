package state

// Carry applies the difference between was and next to a third map: what a run learned is
// carried over to what others wrote meanwhile.
func Carry[K comparable, V comparable](to, was, next map[K]V) {
	for k, v := range next {
		if old, ok := was[k]; !ok || old != v {
			to[k] = v
		}
	}
	for k := range was {
		if _, ok := next[k]; !ok {
			delete(to, k)
		}
	}
}

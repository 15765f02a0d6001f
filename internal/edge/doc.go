// Package edge keeps a virtual address answered: it judges candidates, chooses the one
// that each service's addresses lead to, and moves the elements of nftables maps on this
// machine and its replicas. Choosing is pure (plan.go); a pass observes, plans, locks,
// looks again, applies and records.
package edge

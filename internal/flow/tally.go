package flow

import (
	"context"

	"github.com/shunt-net/shunt/internal/edge"
)

// Tally is how many entries are in scope of an element of a list, Pending or not.
type Tally struct {
	All     int // whether they were answered or not
	Pending int // that were never answered
}

// Tally counts the entries of each element of list, in its order. The kernel walks its
// table once for each family, however long the list is. It deletes nothing.
func (f *Flows) Tally(ctx context.Context, list []edge.Flush) ([]Tally, error) {
	all := make([]edge.Flush, len(list))
	at := map[scope]int{}
	twin := make([]int, len(list)) // the first element of the same scope
	for i, x := range list {
		x.Pending = false
		all[i] = x
		s, err := of(x)
		if err != nil {
			return nil, err
		}
		first, dup := at[s]
		if !dup {
			at[s], first = i, i
		}
		twin[i] = first
	}
	jobs, err := plan(all, 0)
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	out := make([]Tally, len(list))
	err = f.with(ctx, func(context.Context) error {
		for _, j := range jobs {
			found, err := f.list(j)
			if err != nil {
				return err
			}
			for _, e := range found {
				t := &out[at[j.scopes[e.scope]]]
				t.All++
				if e.status&statusSeenReply == 0 {
					t.Pending++
				}
			}
		}
		return nil
	})
	for i, first := range twin {
		out[i] = out[first]
	}
	return out, err
}

package edgeworld

import (
	"context"
	"encoding/json"
	"fmt"
)

// Status is what scenarios and tests read of `edge status`.
type Status struct {
	Digest   string `json:"digest"`
	Services []struct {
		Service    string `json:"service"`
		Family     int    `json:"family"`
		Candidate  string `json:"candidate"`
		Epoch      uint64 `json:"epoch"`
		LastResort bool   `json:"last_resort"`
		Candidates []struct {
			Candidate string `json:"candidate"`
			State     string `json:"state"`
		} `json:"candidates"`
	} `json:"services"`
	Replicas []struct {
		Name  string `json:"name"`
		State string `json:"state"`
	} `json:"replicas"`
	Notes []struct {
		Code string `json:"code"`
	} `json:"notes"`
}

// Status is what the replica tells, with its exit code.
func (r *Replica) Status(ctx context.Context) (s Status, code int, err error) {
	res := r.Shunt(ctx, "edge", "status", "--output", "json")
	if err := json.Unmarshal(res.Stdout, &s); err != nil {
		return s, res.Code, fmt.Errorf("status of %s: exit code %d: %w: %s", r.Name, res.Code, err, res.Stderr)
	}
	return s, res.Code, nil
}

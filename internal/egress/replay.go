package egress

import "fmt"

// Replan plans a recorded input again.
func Replan(in Input) (Plan, error) {
	if in.Version != InputVersion {
		return Plan{}, fmt.Errorf("input version %d: this program reads version %d", in.Version, InputVersion)
	}
	in.Memory = in.Memory.clone()
	switch in.Command {
	case "repair":
		return PlanRepair(in), nil
	case "rebalance":
		return PlanRebalance(in), nil
	case "recover":
		return PlanRecover(in), nil
	case "refresh":
		return PlanRefresh(in), nil
	}
	return Plan{}, fmt.Errorf("input of command %q: want refresh, rebalance, repair or recover", in.Command)
}

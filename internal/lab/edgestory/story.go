// Package edgestory holds the edge's scenarios: each plays deaths, drains and other days of
// a virtual address in a world of its own and measures them. A scenario that must show a
// zero has a positive control in the same run.
package edgestory

import "github.com/shunt-net/shunt/internal/lab"

// Scenarios are the edge's scenarios, in the order that they are listed in.
func Scenarios() []lab.Scenario {
	return []lab.Scenario{
		deathScenario(), hostDeathScenario(), udpScenario(), halfOpenScenario(), resetDeadScenario(), drainScenario(), replicasScenario(),
		recoveryScenario(), idleScenario(), starvedScenario(), handoverScenario(), killScenario(), foreignScenario(), scaleScenario(), benchScenario(),
	}
}

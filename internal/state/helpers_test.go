package state

// helpers are what this binary does instead of testing, by name.
func helpers() map[string]func(dir string) error {
	return map[string]func(string) error{
		"hold":       helpHold,
		"count":      helpCount,
		"scenario":   helpScenario,
		"loop":       helpLoop,
		"generation": helpGeneration,
		"stranger":   helpStranger,
	}
}

package cli

import "testing"

func TestTheOperatorIsWhoCalledSudo(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"root by sudo", map[string]string{"SUDO_USER": "alice", "LOGNAME": "root", "USER": "root"}, "alice"},
		{"root at a console", map[string]string{"LOGNAME": "root", "USER": "root"}, "root"},
		{"a service", nil, ""},
		{"a name that would break a line", map[string]string{"SUDO_USER": "al\nice\x1b[31m\t"}, "alice[31m"},
		{"nothing but blanks", map[string]string{"SUDO_USER": " \n", "USER": "bob"}, "bob"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := operator(func(k string) string { return tt.env[k] }); got != tt.want {
				t.Errorf("operator %q, want %q", got, tt.want)
			}
		})
	}
}

package edge

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// soundFile has the seeds' shape: VRRP 2 with a password.
const soundFile = `! a comment
global_defs {
  router_id core-01
}
vrrp_script chk {
  script "/usr/bin/true"
  interval 1
  weight -60
}
vrrp_instance VI_1 {
  state BACKUP
  interface eth0
  virtual_router_id 77
  priority 150
  advert_int 1
  authentication {
    auth_type PASS
    auth_pass hunter2
  }
  virtual_ipaddress {
    10.0.0.50/24 dev eth0
  }
  track_script { chk }
}
`

// another is the file of a second machine, with what else is edited.
func another(old ...string) string {
	second := strings.NewReplacer("router_id core-01", "router_id core-02", "priority 150", "priority 100").Replace(soundFile)
	return strings.NewReplacer(old...).Replace(second)
}

// said is "line code" of each finding; warnings are marked.
func saidFindings(found []Finding) string {
	var b strings.Builder
	for _, f := range found {
		_, line, _ := strings.Cut(f.Where, ":")
		if f.Warning {
			b.WriteString("warning ")
		}
		b.WriteString(strings.TrimSpace(line+" "+f.Code) + "\n")
	}
	return b.String()
}

func TestTrapsOfOneFile(t *testing.T) {
	edit := func(old ...string) string { return strings.NewReplacer(old...).Replace(soundFile) }
	for name, tt := range map[string]struct{ text, want string }{
		"none":                                {soundFile, ""},
		"a semicolon behind the type":         {edit("PASS", "PASS;"), "17 semicolon\n"},
		"a semicolon behind the password":     {edit("hunter2", "hunter2;"), "18 semicolon\n"},
		"a semicolon behind the priority":     {edit("priority 150", "priority 150;"), "14 semicolon\n"},
		"a long password":                     {edit("hunter2", "hunter2hunter2"), "18 auth_long\n"},
		"eight bytes are fine":                {edit("hunter2", "hunter28"), ""},
		"an unknown type":                     {edit("PASS", "pass"), "17 auth_type\n"},
		"no type":                             {edit("    auth_type PASS\n", ""), "16 auth_type\n"},
		"a password in VRRP 3":                {edit("router_id core-01", "router_id core-01\n  vrrp_version 3"), "warning 17 auth_v3\n"},
		"the id of every example":             {edit("virtual_router_id 77", "virtual_router_id 51"), "warning 13 vrid_example\n"},
		"an id out of range":                  {edit("virtual_router_id 77", "virtual_router_id 256"), "13 vrid_range\n"},
		"no id":                               {edit("  virtual_router_id 77\n", ""), "10 vrid_range\n"},
		"the owner's priority":                {edit("priority 150", "priority 255"), "14 priority_range\n"},
		"no priority":                         {edit("  priority 150\n", ""), "warning 10 no_priority\n"},
		"no interface":                        {edit("  interface eth0\n", ""), "10 no_interface\n"},
		"a short interval in VRRP 2":          {edit("advert_int 1", "advert_int 0.1"), "15 advert_v2\n"},
		"a script twice a second":             {edit("interval 1", "interval 0.5"), "7 script_interval\n"},
		"nopreempt as master, with a weight":  {edit("state BACKUP", "state MASTER\n  nopreempt"), "12 nopreempt_master\n12 nopreempt_weight\n"},
		"two families":                        {edit("10.0.0.50/24 dev eth0", "10.0.0.50\n    fd00::50"), "22 family\n"},
		"no address":                          {edit("    10.0.0.50/24 dev eth0\n", ""), "10 no_address\nmissing_address\n"},
		"its own peer":                        {edit("advert_int 1", "unicast_src_ip 10.0.0.1\n  unicast_peer { 10.0.0.1\n 10.0.0.2 }"), "16 peer_self\n"},
		"a brace too few":                     {edit("track_script { chk }\n}", "track_script { chk }"), "10 unbalanced\n"},
		"a brace too many":                    {soundFile + "}\n", "25 unbalanced\n"},
		"one id in two instances":             {soundFile + strings.ReplaceAll(soundFile[strings.Index(soundFile, "vrrp_instance"):], "VI_1", "VI_2"), "28 vrid_twice\n"},
		"one id of two families":              {soundFile + strings.NewReplacer("VI_1", "VI_2", "10.0.0.50/24", "fd00::50").Replace(soundFile[strings.Index(soundFile, "vrrp_instance"):]), ""},
		"commented out":                       {edit("auth_pass", "#auth_type PASS;\n    ! auth_pass hunter2hunter2\n    auth_pass"), ""},
		"the brace on the next line":          {edit("authentication {", "authentication\n  {"), ""},
		"nothing in it":                       {"", ""},
		"a service's address in no instance":  {edit("10.0.0.50/24", "10.0.0.51"), "missing_address\n"},
		"an address of the excluded is there": {edit("10.0.0.50/24 dev eth0", "10.0.0.51\n  }\n  virtual_ipaddress_excluded {\n    10.0.0.50"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			found := LintKeepalived([]ConfigFile{{"a.conf", tt.text}}, keepalivedConfig(3, "10.0.0.50"))
			if diff := cmp.Diff(tt.want, saidFindings(found)); diff != "" {
				t.Errorf("(-want +got):\n%s\n%+v", diff, found)
			}
			for _, f := range found {
				if strings.Contains(f.Text+f.Mend, "hunter2") || f.Text == "" || f.Mend == "" || !strings.HasPrefix(f.Where, "a.conf") {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

func TestTrapsBetweenMachines(t *testing.T) {
	for name, tt := range map[string]struct{ first, second, want string }{
		"none":                           {soundFile, another(), ""},
		"one name for two":               {soundFile, another("core-02", "core-01"), "3 router_id_equal\n"},
		"one priority for two":           {soundFile, another("priority 100", "priority 150"), "14 priority_equal\n"},
		"a rung too low":                 {soundFile, another("priority 100", "priority 90"), "14 priority_gap\n"},
		"other addresses, the same id":   {soundFile, another("10.0.0.50/24", "10.0.0.60/24"), "13 vrid_collision\n"},
		"one address more":               {soundFile, another("10.0.0.50/24 dev eth0", "10.0.0.50/24 dev eth0\n 10.0.0.51"), "20 differs\n"},
		"another interval":               {soundFile, another("advert_int 1", "advert_int 2"), "15 differs\n"},
		"another version":                {soundFile, another("router_id core-02", "router_id core-02\n  vrrp_version 3"), "warning 17 auth_v3\n11 differs\n17 differs\n"},
		"another password":               {soundFile, another("hunter2", "hunter3"), "16 differs\n"},
		"passwords equal in eight bytes": {strings.Replace(soundFile, "hunter2", "hunter2hunter2", 1), another("hunter2", "hunter2hunter3"), "18 auth_long\n18 auth_long\n"},
		"two masters":                    {strings.Replace(soundFile, "BACKUP", "MASTER", 1), another("BACKUP", "MASTER"), "warning 11 two_masters\n"},
	} {
		t.Run(name, func(t *testing.T) {
			found := LintKeepalived([]ConfigFile{{"a.conf", tt.first}, {"b.conf", tt.second}}, Config{})
			if diff := cmp.Diff(tt.want, saidFindings(found)); diff != "" {
				t.Errorf("(-want +got):\n%s\n%+v", diff, found)
			}
			for _, f := range found {
				if strings.Contains(f.Text+f.Mend, "hunter") {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

func FuzzKeepalived(f *testing.F) {
	for _, s := range []string{soundFile, "", "{", "}", "a {", "a { b } }", "{{{{", "a\n{\n}\n{", `"x`, "vrrp_instance { virtual_ipaddress { } }", "vrrp_instance x { priority ; auth_pass }"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		found := LintKeepalived([]ConfigFile{{"a", text}, {"b", text}}, keepalivedConfig(2, "10.0.0.50"))
		for _, x := range found {
			if x.Where == "" || x.Code == "" || x.Text == "" || x.Mend == "" {
				t.Errorf("%+v", x)
			}
		}
	})
}

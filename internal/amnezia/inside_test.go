package amnezia

import "testing"

func TestThePrefixOfDataTakesItsPartOfTheMTU(t *testing.T) {
	p := Params{S: [4]int{0, 0, 0, 20}}
	for _, tt := range []struct {
		name         string
		stated, want int
	}{
		{"not said", 0, 1400},
		{"the usual one, which forgets it", 1420, 1400},
		{"a little less", 1412, 1400},
		{"small enough already", 1280, 1280},
		{"a path of jumbo frames", 8920, 8900},
	} {
		if got := p.Inside(tt.stated, 1420); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
	if got := (Params{}).Inside(1412, 1420); got != 1412 {
		t.Errorf("plain: %d, want what is said", got)
	}
}

func TestParametersComeBackFromTheControlSocket(t *testing.T) {
	for name, p := range generations(t) {
		lines, err := p.UAPI(V31)
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, l := range lines {
			text += l + "\n"
		}
		got, err := ParseControl("private_key=00\n" + text + "public_key=00\njc=99\n")
		if err != nil || !got.Same(p) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if name != "plain" && got.Same(Params{}) {
			t.Errorf("%s is the same as none", name)
		}
	}
}

package lane

import (
	"os"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/amnezia"
)

// kernel is the kernel module of AmneziaWG.
type kernel struct{}

func (*kernel) device(string) (*wgtypes.Device, amnezia.Params, error) {
	return nil, amnezia.Params{}, os.ErrNotExist
}
func (*kernel) configure(string, wgtypes.Config, amnezia.Params) error { return os.ErrNotExist }
func (*kernel) close()                                                 {}

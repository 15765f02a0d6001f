package provider

import (
	"archive/zip"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shunt-net/shunt/internal/egress"
)

func TestReachBelievesOnlyWhatCanBeOfTheSource(t *testing.T) {
	var packed bytes.Buffer
	z := zip.NewWriter(&packed)
	if _, err := z.Create("a.conf"); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		kind   egress.SourceType
		status int
		body   string
		want   string // "" = reached
	}{
		{"an archive", egress.SourceArchive, 200, packed.String(), ""},
		{"a portal's page for an archive", egress.SourceArchive, 200, "<html>please log in", "not a list"},
		{"an archive that is gone", egress.SourceArchive, 404, packed.String(), "404"},
		{"an empty answer", egress.SourceHTTP, 200, "", "empty"},
		{"a profile", egress.SourceHTTP, 200, "[Interface]\nPrivateKey = x\n", ""},
		{"a list of links", egress.SourceHTTP, 200, "/a.conf\n/b.conf\n", ""},
		{"a relay list", egress.SourceMullvad, 200, `{"wireguard": {}}`, ""},
		{"an archive for a relay list", egress.SourceMullvad, 200, packed.String(), "not a list"},
	} {
		site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		var dialled atomic.Int32
		err := Reach(t.Context(), []egress.Source{{Name: "own", Type: egress.SourceDir, Path: "/"}, {Name: "site", Type: c.kind, URL: site.URL}}, Options{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				dialled.Add(1)
				return (&net.Dialer{}).DialContext(ctx, network, address)
			},
		})
		site.Close()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if dialled.Load() == 0 {
			t.Errorf("%s: the way was not used", c.name)
		}
	}
	if err := Reach(t.Context(), []egress.Source{{Name: "own", Type: egress.SourceDir, Path: "/"}}, Options{}); err == nil {
		t.Error("a folder was reached by the network")
	}
}
